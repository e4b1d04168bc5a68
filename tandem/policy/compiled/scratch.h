/* Memory of one board, and what is kept there during a cycle. */
#ifndef TANDEM_SCRATCH_H
#define TANDEM_SCRATCH_H

#include "columns.h"

typedef struct {
    i64 row;
    double speed, loss, score;
} Candidate;

/* What is on a GPU, or would be: the columns of one row. `now` is the speed of each resident. */
typedef struct {
    i64 row, count;
    double base, extra, peak_sum, none, one, utilisation;
    u8 measured, exclusive;
    i64 there[MAX_SLOTS], kind[MAX_SLOTS];
    double slowdown[MAX_SLOTS], now[MAX_SLOTS];
} Place;

/* What one worker of a job would do on one GPU, as in `Offers`. */
typedef struct {
    double speed, loss, slowed, present, worth;
    int allowed;
} Offer;

/* A job taken off for a trial, and how everything was before. */
typedef struct {
    i64 job, count;
    const i64 *rows;
    Place *places;     /* (count,) */
    i64 concerned;     /* the job and those on its GPUs */
    i64 *jobs;         /* (concerned,) */
    double *speeds;    /* (concerned,) */
    u8 *stale;         /* (concerned,) */
} Aside;

typedef struct Chunk {
    struct Chunk *next;
    size_t size, used;
    double data[]; /* aligned for all that is kept here */
} Chunk;

/* Memory of one board. Columns (jobs,) stay as they are between two cycles, for only the rows of
 * jobs in the system are used; what one cycle needs besides comes from chunks that are reused. */
typedef struct {
    i64 jobs, gpus, nodes;
    const i64 **rows_of; /* (jobs,) */
    i64 *rows_count;     /* (jobs,) */
    u8 *staleness;               /* (jobs,) FRESH, STALE, or LISTED: in the list, and fresh */
    u8 *may_stop, *gone, *mark;  /* (jobs,) */
    double *recovered;                     /* (jobs,) of the swaps numbered `recovered_at` */
    i64 *recovered_at;                     /* (jobs,) */
    i64 *bin;                              /* (jobs,) of running time */
    i64 *node_seen;                        /* (nodes,) */
    i64 stamp;
    i64 *stale; /* (jobs,) */
    i64 stale_count;
    Chunk *first, *at;
    jmp_buf out_of_memory;
} Scratch;

void tandem_free(Scratch *s) {
    if (s == NULL) return;
    free(s->rows_of);
    free(s->rows_count);
    free(s->staleness);
    free(s->may_stop);
    free(s->gone);
    free(s->mark);
    free(s->recovered);
    free(s->recovered_at);
    free(s->bin);
    free(s->node_seen);
    free(s->stale);
    while (s->first != NULL) {
        Chunk *next = s->first->next;
        free(s->first);
        s->first = next;
    }
    free(s);
}

Scratch *tandem_new(i64 jobs, i64 gpus, i64 nodes) {
    Scratch *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    size_t n = (size_t)(jobs > 0 ? jobs : 1);
    s->jobs = jobs;
    s->gpus = gpus;
    s->nodes = nodes;
    s->rows_of = calloc(n, sizeof *s->rows_of);
    s->rows_count = calloc(n, sizeof *s->rows_count);
    s->staleness = calloc(n, 1);
    s->may_stop = calloc(n, 1);
    s->gone = calloc(n, 1);
    s->mark = calloc(n, 1);
    s->recovered = calloc(n, sizeof *s->recovered);
    s->recovered_at = calloc(n, sizeof *s->recovered_at);
    s->bin = calloc(n, sizeof *s->bin);
    s->node_seen = calloc((size_t)(nodes > 0 ? nodes : 1), sizeof *s->node_seen);
    s->stale = calloc(n, sizeof *s->stale);
    if (!s->rows_of || !s->rows_count || !s->staleness || !s->may_stop || !s->gone || !s->mark ||
        !s->recovered || !s->recovered_at || !s->bin || !s->node_seen || !s->stale) {
        tandem_free(s);
        return NULL;
    }
    return s;
}

/* Return `count` items of `each` bytes, not initialised, that live until the cycle ends or
 * `release` is called with a mark taken before. */
static void *take(Scratch *s, i64 count, size_t each) {
    size_t wanted = ((size_t)(count > 0 ? count : 1) * each + 15) & ~(size_t)15;
    while (s->at != NULL && s->at->used + wanted > s->at->size && s->at->next != NULL) {
        s->at = s->at->next;
        s->at->used = 0;
    }
    if (s->at == NULL || s->at->used + wanted > s->at->size) {
        size_t size = wanted > ((size_t)1 << 18) ? wanted : (size_t)1 << 18;
        Chunk *new = malloc(sizeof *new + size);
        if (new == NULL) longjmp(s->out_of_memory, 1);
        new->next = NULL;
        new->size = size;
        new->used = 0;
        if (s->at == NULL) {
            s->first = new;
        } else {
            s->at->next = new;
        }
        s->at = new;
    }
    void *found = (char *)s->at->data + s->at->used;
    s->at->used += wanted;
    return found;
}

#define TAKE(s, type, count) ((type *)take((s), (count), sizeof(type)))

typedef struct {
    Chunk *at;
    size_t used;
} Mark;

static Mark mark_of(const Scratch *s) {
    Mark m = {s->at, s->at == NULL ? 0 : s->at->used};
    return m;
}

static void release(Scratch *s, Mark m) {
    s->at = m.at == NULL ? s->first : m.at;
    if (s->at != NULL) s->at->used = m.used;
}

#endif
