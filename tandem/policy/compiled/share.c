/* One scheduling cycle of the dispatch `share`, on the columns of a board.
 *
 * The functions below compute what tandem/policy/dispatch/{share,valuation,fill,exchange,swap,
 * move,too_slow}.py and tandem/policy/equations/{worth,turns}.py compute, and in the same order.
 * Those modules are the specification: they say what each quantity means and where it comes from.
 * tests/policy/test_policy_compiled.py compares both on random boards. Units are those of the
 * modules: seconds, GiB, completions per GPU-second, and speeds as shares of solo speed.
 *
 * The caller owns all columns. Nothing here is global: each board has a `Scratch` of its own.
 */
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef TANDEM_SOURCE
#define TANDEM_SOURCE "unknown"
#endif

typedef int64_t i64;
typedef uint8_t u8;

enum {
    MAX_SLOTS = 8,  /* residents of a GPU that are told apart */
    NOBODY = 0,     /* interference class of an empty slot */
    BINS = 64,      /* equations/worth.py, _BINS */
    AHEAD = 6,      /* equations/worth.py, _AHEAD */
    TRIALS = 4,     /* dispatch/exchange.py, _TRIALS */
    SPARE = 8,      /* dispatch/exchange.py, _SPARE */
    TRIES = 6,      /* dispatch/move.py, _TRIES */
    EACH = 64,      /* dispatch/share.py, _EACH */
    TURN_COSTS = 10 /* dispatch/share.py, _TURN_COSTS */
};
static const double NOTABLE = 0.3;          /* dispatch/share.py, _NOTABLE */
static const double HORIZON_S = 300.0;      /* dispatch/move.py, _HORIZON_S */
static const double ROUNDED_UP = 1 + 1e-9;  /* dispatch/fill.py, _ROUNDED_UP */
static const double ROUNDING = 1e-9;        /* dispatch/too_slow.py, _ROUNDING */
static const double RATIO = 1.5;            /* equations/worth.py, _RATIO */

enum { DONE = 0, NOTHING_NEW = 1, UNSUPPORTED = -1, NO_MEMORY = -2 };
enum { START = 0, STOP = 1, STOP_TOO_SLOW = 2 };
enum { FRESH = 0, STALE = 1, LISTED = 2 };

/* The columns of a board, one pointer a column; tandem/policy/compiled/cycle.py has the same
 * fields in the same order, each of eight bytes. */
typedef struct {
    i64 gpus, slots, jobs, nodes, widest_node;
    /* (gpus,), as in GpuArrays */
    const i64 *node;
    const double *memory_capacity_gib;
    double *memory_base_gib, *memory_peak_extra_gib, *memory_peak_sum_gib;
    double *none_in_peak, *one_in_peak;
    u8 *peaks_measured;
    const u8 *guarded;
    double *gpu_utilisation;
    i64 *count; /* residents: `GpuArrays.jobs` */
    const i64 *shares;
    u8 *exclusive;
    const u8 *healthy, *fresh;
    /* (gpus, slots) */
    i64 *residents, *resident_class;
    double *resident_slowdown;
    /* (jobs,), as in JobArrays */
    const i64 *size;
    const double *arrived_s;
    const u8 *running;
    const double *since_s, *attained_at_since, *service_at_since;
    /* (jobs,), as in JobColumns */
    const double *base_gib, *extra_gib, *peak_probability;
    const u8 *peak_measured;
    const double *utilisation, *spread_slowdown;
    const u8 *never_shares, *checkpointable, *known;
    const i64 *wanted, *per_pod, *demand, *table, *job_class;
    const double *own, *caused; /* (tables, classes) */
    i64 classes;
    /* The board */
    double *predicted_speed, *spread_speed; /* (jobs,) */
    u8 *on_gpus, *changed, *untried;        /* (jobs,), (gpus,), (gpus,) */
    u8 *touched;                            /* (gpus,) where jobs came or went in this cycle */
    double *seen_rate, *rate;               /* (jobs,) */
    const i64 *pool, *pool_at, *held;       /* rows of a job: held[job] of them at pool[pool_at] */
    const i64 *stale, *pinned;
    i64 stale_count, pinned_count;
    /* Where jobs may go besides: masks (masks, nodes), and residents to stay away from */
    const i64 *mask_of, *apart_of; /* (jobs,), -1 for none */
    const u8 *masks;
    const i64 *apart_at, *apart; /* residents of set k: apart[apart_at[k]] to apart[apart_at[k+1]] */
    /* The order */
    const i64 *ranked;
    i64 ranked_count;
    double now_s;
    /* What finished jobs teach, as in `Runs`; `learns` is 0 where nothing is learned */
    i64 learns, history_sizes;
    const i64 *history_gpus;
    const double *history_ended, *history_exposure_s; /* (BINS, sizes) */
    const double *bounds_s, *width_s, *tail;          /* (BINS + 1,), (BINS,), (BINS,) */
    /* Parameters of the dispatch; NaN for none */
    double scale_s, prior_jobs, size_prior_jobs, novel, aging, preempt_factor, turn_share;
    double move_cost_s, move_below_speed, min_speed, min_gain;
    i64 shares_gpus, locality, best_pair, demands_tried;
    /* Constraints: 1 where the pipeline has them; bounds are infinite where it has none */
    i64 needs_healthy, needs_fresh, needs_shares, at_most, needs_exclusive, needs_memory;
    i64 peaks_fit, peaks_opportunistic;
    double max_collision_probability, max_utilisation;
    /* Answer: actions as (kind, job, count of rows, rows...) */
    i64 *actions;
    i64 actions_room, actions_used;
} Cycle;

typedef struct {
    i64 row;
    double speed, loss;
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
    i64 concerned;     /* the job and those beside it */
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

/* --- memory ---------------------------------------------------------------------------------- */

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

/* --- the board -------------------------------------------------------------------------------- */

typedef struct {
    Cycle *c;
    Scratch *s;
    i64 *active; /* jobs in the order or on a GPU */
    i64 active_count;
} Run;

static i64 most_jobs(const Cycle *c, i64 row) {
    i64 shares = c->shares[row];
    return c->shares_gpus || shares < 1 ? shares : 1;
}

static double spread_speed(const Cycle *c, i64 job) {
    return c->locality ? c->spread_speed[job] : 1.0;
}

static void make_stale(Run *r, i64 job) {
    Scratch *s = r->s;
    if (s->staleness[job] == FRESH) s->stale[s->stale_count++] = job;
    s->staleness[job] = STALE;
}

static void make_fresh(Run *r, i64 job) {
    if (r->s->staleness[job] == STALE) r->s->staleness[job] = LISTED;
}

static i64 fewest_nodes(const Cycle *c, i64 job) {
    i64 pods = c->wanted[job] / c->per_pod[job];
    i64 each = c->widest_node / c->per_pod[job];
    if (each < 1) each = 1;
    return (pods + each - 1) / each;
}

static i64 count_nodes(Run *r, const i64 *rows, i64 count) {
    Scratch *s = r->s;
    i64 found = 0, stamp = ++s->stamp;
    for (i64 i = 0; i < count; i++) {
        i64 node = r->c->node[rows[i]];
        found += s->node_seen[node] != stamp;
        s->node_seen[node] = stamp;
    }
    return found;
}

/* As `Board._note_spread`. */
static void note_spread(Run *r, i64 job, const i64 *rows, i64 count) {
    Cycle *c = r->c;
    double slowdown = c->spread_slowdown[job];
    int spread = slowdown > 0 && count > 1 && count_nodes(r, rows, count) > fewest_nodes(c, job);
    c->spread_speed[job] = spread ? 1 / (1 + slowdown) : 1.0;
}

/* As `add_worker`, on one row. */
static void add_worker(Cycle *c, i64 job, i64 row) {
    double p = c->peak_probability[job];
    i64 *there = c->residents + row * c->slots, *kind = c->resident_class + row * c->slots;
    double *slowdown = c->resident_slowdown + row * c->slots;
    c->one_in_peak[row] = c->one_in_peak[row] * (1 - p) + c->none_in_peak[row] * p;
    c->none_in_peak[row] *= 1 - p;
    c->memory_base_gib[row] += c->base_gib[job];
    if (c->extra_gib[job] > c->memory_peak_extra_gib[row]) {
        c->memory_peak_extra_gib[row] = c->extra_gib[job];
    }
    c->memory_peak_sum_gib[row] += c->extra_gib[job];
    c->gpu_utilisation[row] += c->utilisation[job];
    if (!c->peak_measured[job]) c->peaks_measured[row] = 0;
    if (c->never_shares[job]) c->exclusive[row] = 1;
    i64 slot = c->count[row] < c->slots - 1 ? c->count[row] : c->slots - 1;
    if (c->known[job]) {
        const double *own = c->own + c->table[job] * c->classes;
        const double *caused = c->caused + c->table[job] * c->classes;
        double sum = 0;
        for (i64 k = 0; k < c->slots; k++) {
            slowdown[k] += caused[kind[k]];
            sum += own[kind[k]];
        }
        slowdown[slot] = sum;
    }
    there[slot] = job;
    kind[slot] = c->job_class[job];
    c->count[row] += 1;
}

/* As `reset_rows`, on one row. */
static void reset_row(Cycle *c, i64 row) {
    c->memory_base_gib[row] = c->memory_peak_extra_gib[row] = c->memory_peak_sum_gib[row] = 0;
    c->one_in_peak[row] = c->gpu_utilisation[row] = 0;
    c->none_in_peak[row] = 1;
    c->peaks_measured[row] = 1;
    c->count[row] = 0;
    c->exclusive[row] = 0;
    for (i64 k = row * c->slots; k < (row + 1) * c->slots; k++) {
        c->residents[k] = -1;
        c->resident_class[k] = NOBODY;
        c->resident_slowdown[k] = 0;
    }
}

/* As `Board.place`; `rows` must live as long as the job is there. */
static void place_job(Run *r, i64 job, const i64 *rows, i64 count) {
    Cycle *c = r->c;
    for (i64 i = 0; i < count; i++) {
        add_worker(c, job, rows[i]);
        c->changed[rows[i]] = c->touched[rows[i]] = 1;
        for (i64 k = 0; k < c->slots; k++) {
            i64 there = c->residents[rows[i] * c->slots + k];
            if (there >= 0) make_stale(r, there);
        }
    }
    r->s->rows_of[job] = rows;
    r->s->rows_count[job] = count;
    c->on_gpus[job] = 1;
    note_spread(r, job, rows, count);
}

/* As `Board.remove`. */
static void remove_job(Run *r, i64 job) {
    Cycle *c = r->c;
    const i64 *rows = r->s->rows_of[job];
    i64 count = r->s->rows_count[job];
    c->on_gpus[job] = 0;
    for (i64 i = 0; i < count; i++) {
        i64 row = rows[i], left[MAX_SLOTS], n = 0;
        for (i64 k = 0; k < c->slots; k++) {
            i64 there = c->residents[row * c->slots + k];
            if (there >= 0 && there != job) left[n++] = there;
        }
        c->changed[row] = c->touched[row] = 1;
        reset_row(c, row);
        for (i64 k = 0; k < n; k++) {
            add_worker(c, left[k], row);
            make_stale(r, left[k]);
        }
    }
    make_fresh(r, job);
}

static void place_of(const Cycle *c, i64 row, Place *p) {
    p->row = row;
    p->count = c->count[row];
    p->base = c->memory_base_gib[row];
    p->extra = c->memory_peak_extra_gib[row];
    p->peak_sum = c->memory_peak_sum_gib[row];
    p->none = c->none_in_peak[row];
    p->one = c->one_in_peak[row];
    p->utilisation = c->gpu_utilisation[row];
    p->measured = c->peaks_measured[row];
    p->exclusive = c->exclusive[row];
    for (i64 k = 0; k < c->slots; k++) {
        i64 there = c->residents[row * c->slots + k];
        p->there[k] = there;
        p->kind[k] = c->resident_class[row * c->slots + k];
        p->slowdown[k] = c->resident_slowdown[row * c->slots + k];
        p->now[k] = there >= 0 ? c->predicted_speed[there] : 0;
    }
}

static void put_place(Cycle *c, const Place *p) {
    i64 row = p->row;
    c->count[row] = p->count;
    c->memory_base_gib[row] = p->base;
    c->memory_peak_extra_gib[row] = p->extra;
    c->memory_peak_sum_gib[row] = p->peak_sum;
    c->none_in_peak[row] = p->none;
    c->one_in_peak[row] = p->one;
    c->gpu_utilisation[row] = p->utilisation;
    c->peaks_measured[row] = p->measured;
    c->exclusive[row] = p->exclusive;
    for (i64 k = 0; k < c->slots; k++) {
        c->residents[row * c->slots + k] = p->there[k];
        c->resident_class[row * c->slots + k] = p->kind[k];
        c->resident_slowdown[row * c->slots + k] = p->slowdown[k];
    }
}

/* As `without`, on one row: only the residents with `keep` are left. */
static void without(const Cycle *c, Place *p, const u8 *keep) {
    Place old = *p;
    p->base = p->extra = p->peak_sum = p->utilisation = p->one = 0;
    p->none = 1;
    p->measured = 1;
    p->exclusive = 0;
    for (i64 k = 0; k < c->slots; k++) {
        i64 job = old.there[k];
        if (job < 0 || !keep[k]) {
            p->count -= job >= 0;
            p->there[k] = -1;
            p->kind[k] = NOBODY;
            continue;
        }
        double chance = c->peak_probability[job];
        p->base += c->base_gib[job];
        if (c->extra_gib[job] > p->extra) p->extra = c->extra_gib[job];
        p->peak_sum += c->extra_gib[job];
        p->utilisation += c->utilisation[job];
        if (!c->peak_measured[job]) p->measured = 0;
        if (c->never_shares[job]) p->exclusive = 1;
        p->one = p->one * (1 - chance) + p->none * chance;
        p->none *= 1 - chance;
    }
    for (i64 k = 0; k < c->slots; k++) {
        p->slowdown[k] = 0;
        p->now[k] = p->there[k] >= 0 ? old.now[k] : 0;
        if (p->there[k] < 0) continue;
        const double *own = c->own + c->table[p->there[k]] * c->classes;
        for (i64 other = 0; other < c->slots; other++) {
            if (other != k) p->slowdown[k] += own[p->kind[other]];
        }
    }
}

/* Return the summed slowdown of a worker of `job` on `row`, where it runs, without `leaving`. */
static double slowdown_at(const Cycle *c, i64 job, i64 row, i64 leaving) {
    const double *own = c->own + c->table[job] * c->classes;
    double sum = 0;
    for (i64 k = row * c->slots; k < (row + 1) * c->slots; k++) {
        i64 there = c->residents[k];
        sum += own[there == job || (there == leaving && there >= 0) ? NOBODY : c->resident_class[k]];
    }
    return sum;
}

static double worst_slowdown(Run *r, i64 job, i64 leaving) {
    double most = -INFINITY;
    for (i64 i = 0; i < r->s->rows_count[job]; i++) {
        double found = slowdown_at(r->c, job, r->s->rows_of[job][i], leaving);
        if (found > most) most = found;
    }
    return most;
}

/* As `Valuation.refresh`. */
static void refresh(Run *r) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    for (i64 i = 0; i < s->stale_count; i++) {
        i64 job = s->stale[i];
        int stale = s->staleness[job] == STALE;
        s->staleness[job] = FRESH;
        if (!stale) continue;
        i64 most = 0;
        for (i64 k = 0; k < s->rows_count[job]; k++) {
            i64 there = c->count[s->rows_of[job][k]];
            if (there > most) most = there;
        }
        double spread = spread_speed(c, job);
        c->predicted_speed[job] = most <= 1 ? spread : 1 / (1 + worst_slowdown(r, job, -1)) * spread;
    }
    s->stale_count = 0;
}

/* As `Valuation.value`; speeds must be fresh. */
static double value_of(const Cycle *c, i64 job) {
    return c->rate[job] * c->predicted_speed[job] * (double)c->size[job];
}

/* Add the residents of `rows` that are not marked yet to `found`, and mark them. */
static i64 add_residents(Run *r, const i64 *rows, i64 count, i64 *found, i64 n) {
    Cycle *c = r->c;
    for (i64 i = 0; i < count; i++) {
        for (i64 k = 0; k < c->slots; k++) {
            i64 there = c->residents[rows[i] * c->slots + k];
            if (there >= 0 && !r->s->mark[there]) {
                r->s->mark[there] = 1;
                found[n++] = there;
            }
        }
    }
    return n;
}

static void unmark(Run *r, const i64 *jobs, i64 count) {
    for (i64 i = 0; i < count; i++) r->s->mark[jobs[i]] = 0;
}

/* Return the job and those that share a GPU with it, the job first. */
static i64 *with_partners(Run *r, i64 job, i64 *count) {
    i64 n = r->s->rows_count[job];
    i64 *found = TAKE(r->s, i64, 1 + n * r->c->slots);
    found[0] = job;
    r->s->mark[job] = 1;
    *count = add_residents(r, r->s->rows_of[job], n, found, 1);
    unmark(r, found, *count);
    return found;
}

/* As `Board.set_aside`. */
static void set_aside(Run *r, i64 job, Aside *aside) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    aside->job = job;
    aside->rows = s->rows_of[job];
    aside->count = s->rows_count[job];
    aside->places = TAKE(s, Place, aside->count);
    for (i64 i = 0; i < aside->count; i++) place_of(c, aside->rows[i], &aside->places[i]);
    aside->jobs = with_partners(r, job, &aside->concerned);
    aside->speeds = TAKE(s, double, aside->concerned);
    aside->stale = TAKE(s, u8, aside->concerned);
    for (i64 i = 0; i < aside->concerned; i++) {
        aside->speeds[i] = c->predicted_speed[aside->jobs[i]];
        aside->stale[i] = s->staleness[aside->jobs[i]] == STALE;
    }
    remove_job(r, job);
}

/* As `Board.put_back`. */
static void put_back(Run *r, const Aside *aside) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    for (i64 i = 0; i < aside->count; i++) put_place(c, &aside->places[i]);
    s->rows_of[aside->job] = aside->rows;
    s->rows_count[aside->job] = aside->count;
    c->on_gpus[aside->job] = 1;
    note_spread(r, aside->job, aside->rows, aside->count);
    for (i64 i = 0; i < aside->concerned; i++) {
        i64 job = aside->jobs[i];
        c->predicted_speed[job] = aside->speeds[i];
        make_fresh(r, job);
        if (aside->stale[i]) make_stale(r, job);
    }
}

/* Note an action; return where its rows are kept until the cycle ends. */
static const i64 *act(Run *r, i64 kind, i64 job, const i64 *rows, i64 count) {
    Cycle *c = r->c;
    i64 *at = c->actions + c->actions_used;
    at[0] = kind;
    at[1] = job;
    at[2] = count;
    if (count > 0) memcpy(at + 3, rows, (size_t)count * sizeof *at);
    c->actions_used += 3 + count;
    return at + 3;
}

static void start(Run *r, i64 job, const i64 *rows, i64 count) {
    place_job(r, job, act(r, START, job, rows, count), count);
}

static void stop(Run *r, i64 job, i64 kind) {
    remove_job(r, job);
    act(r, kind, job, NULL, 0);
}

/* Return whether there is room for all that one more step may do: a step stops and starts each
 * job at most twice. */
static int has_room(const Run *r) {
    const Cycle *c = r->c;
    return c->actions_room - c->actions_used >= 4 * (c->gpus * c->slots + 3 * r->active_count);
}

/* --- what a worker of a job would do on a GPU -------------------------------------------------- */

/* Whether the constraints allow one more worker of `job` at `p`. */
static int allows(const Cycle *c, i64 job, const Place *p) {
    i64 row = p->row;
    if (c->needs_healthy && !c->healthy[row]) return 0;
    if (c->needs_fresh && !c->fresh[row] && p->count > 0) return 0;
    if (c->needs_shares && p->count >= (c->shares[row] < c->at_most ? c->shares[row] : c->at_most)) {
        return 0;
    }
    if (c->needs_exclusive && (c->never_shares[job] ? p->count > 0 : p->exclusive)) return 0;
    if (c->mask_of[job] >= 0 && !c->masks[c->mask_of[job] * c->nodes + c->node[row]]) return 0;
    if (c->apart_of[job] >= 0) {
        i64 of = c->apart_of[job];
        for (i64 i = c->apart_at[of]; i < c->apart_at[of + 1]; i++) {
            for (i64 k = 0; k < c->slots; k++) {
                if (p->there[k] == c->apart[i]) return 0;
            }
        }
    }
    double capacity = c->memory_capacity_gib[row], base = c->base_gib[job], extra = c->extra_gib[job];
    double largest = p->extra > extra ? p->extra : extra;
    double one_peak = p->base + base + largest;
    double all_peaks = p->base + p->peak_sum + (base + extra);
    if (c->needs_memory && !(one_peak <= capacity)) return 0;
    if (c->max_collision_probability < INFINITY && !(all_peaks <= capacity)) {
        double chance = c->peak_probability[job], none = p->none * (1 - chance);
        double collision = 1 - none - (p->one * (1 - chance) + p->none * chance);
        if (!((collision > 0 ? collision : 0) <= c->max_collision_probability)) return 0;
    }
    if (c->peaks_fit && p->count > 0) {
        int known = c->peaks_opportunistic && c->guarded[row] && p->measured && c->peak_measured[job];
        if (!((known ? one_peak : all_peaks) <= capacity)) return 0;
    }
    if (c->max_utilisation < INFINITY && p->count > 0) {
        if (!(p->utilisation + c->utilisation[job] <= c->max_utilisation)) return 0;
    }
    return 1;
}

/* As one entry of `Offers`. */
static Offer offer_of(const Cycle *c, i64 job, const Place *p) {
    Offer o = {1, 0, 0, 0, 0, 0};
    o.allowed = p->count < most_jobs(c, p->row);
    double slowdown = 0, wanted = (double)c->wanted[job];
    if (!o.allowed) return o;
    if (p->count > 0) {
        const double *own = c->own + c->table[job] * c->classes;
        const double *caused = c->caused + c->table[job] * c->classes;
        o.allowed = 0;
        o.speed = 0;
        for (i64 k = 0; k < c->slots; k++) {
            i64 there = p->there[k];
            slowdown += own[p->kind[k]];
            if (slowdown == INFINITY) return o; /* beside it the job would stand still */
            if (there < 0) continue;
            double size = (double)c->size[there], rate = c->rate[there], now = p->now[k];
            double theirs = 1 / (1 + p->slowdown[k] + caused[p->kind[k]]);
            double lost = now - theirs * spread_speed(c, there);
            if (lost < 0) lost = 0;
            o.slowed += lost;
            o.loss += rate * lost * (size / (size < wanted ? size : wanted));
            o.present += now;
            o.worth += rate * now;
            if (c->min_speed > 0 && !(theirs >= c->min_speed)) return o;
        }
        o.speed = 1 / (1 + slowdown);
        if (c->min_speed > 0 && !(o.speed >= c->min_speed)) return o;
    }
    o.allowed = allows(c, job, p);
    return o;
}

/* As equations/turns.py, `shares_well`. */
static int shares_well(const Cycle *c, double rate, double speed, double loss, double slowed,
                       double present, double worth) {
    double gained = speed - slowed;
    double price = worth / (present > 1e-12 ? present : 1e-12);
    double over_waiting = rate * speed - loss + price * gained;
    double over_going_first = rate * speed + worth - loss - rate + rate * (present + gained - 1);
    return over_waiting > 0 && over_going_first > 0 && gained >= c->min_gain;
}

static int worthwhile(const Cycle *c, i64 job, double speed, const Offer *o) {
    return o->present == 0 ||
           shares_well(c, c->rate[job], speed, o->loss, o->slowed, o->present, o->worth);
}

/* As one entry of `Offers.gains`: minus infinity where the job may not or should not be. */
static double gain_of(const Cycle *c, i64 job, const Offer *o) {
    if (!o->allowed || !worthwhile(c, job, o->speed, o)) return -INFINITY;
    return c->rate[job] * o->speed - o->loss;
}

/* --- where a gang goes -------------------------------------------------------------------------- */

static int is_before(const Candidate *a, const Candidate *b) {
    if (a->loss != b->loss) return a->loss < b->loss;
    if (a->speed != b->speed) return a->speed > b->speed;
    return a->row < b->row;
}

/* Sort the cheapest first, of those the fastest: a merge sort from the bottom up. */
static void sort_cheapest(Scratch *s, Candidate *a, i64 count) {
    i64 at = 1;
    while (at < count && !is_before(&a[at], &a[at - 1])) at++;
    if (at >= count) return;
    Mark m = mark_of(s);
    Candidate *from = a, *to = TAKE(s, Candidate, count);
    for (i64 width = 1; width < count; width *= 2) {
        for (i64 low = 0; low < count; low += 2 * width) {
            i64 middle = low + width < count ? low + width : count;
            i64 high = low + 2 * width < count ? low + 2 * width : count;
            i64 i = low, j = middle, k = low;
            while (i < middle && j < high) {
                to[k++] = is_before(&from[j], &from[i]) ? from[j++] : from[i++];
            }
            while (i < middle) to[k++] = from[i++];
            while (j < high) to[k++] = from[j++];
        }
        Candidate *swap = from;
        from = to;
        to = swap;
    }
    if (from != a) memcpy(a, from, (size_t)count * sizeof *a);
    release(s, m);
}

/* Move the k smallest of `a` to its front. */
static void smallest_first(double *a, i64 count, i64 k) {
    i64 low = 0, high = count - 1;
    while (low < high) {
        double pivot = a[low + (high - low) / 2];
        i64 i = low, j = high;
        while (i <= j) {
            while (a[i] < pivot) i++;
            while (a[j] > pivot) j--;
            if (i <= j) {
                double swap = a[i];
                a[i++] = a[j];
                a[j--] = swap;
            }
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            return;
        }
    }
}

/* Return the sum of the k largest of `a`, which is overwritten. */
static double sum_of_largest(double *a, i64 count, i64 k) {
    double sum = 0;
    for (i64 i = 0; i < count; i++) a[i] = -a[i];
    smallest_first(a, count, k);
    for (i64 i = 0; i < k; i++) sum -= a[i];
    return sum;
}

/* As `whole_pods`: `rows` come in the order of preference. Return how many rows were chosen. */
static i64 whole_pods(Run *r, i64 job, const i64 *rows, i64 count, i64 *chosen) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 each = c->per_pod[job], wanted = c->wanted[job], found = 0;
    if (count < wanted) return 0;
    if (each == 1) {
        memcpy(chosen, rows, (size_t)wanted * sizeof *chosen);
        return wanted;
    }
    Mark m = mark_of(s);
    i64 *last = TAKE(s, i64, c->nodes), *length = TAKE(s, i64, c->nodes);
    i64 *before = TAKE(s, i64, count); /* of each row, the one before it on its node */
    i64 stamp = ++s->stamp;
    for (i64 i = 0; i < count && found < wanted; i++) {
        i64 node = c->node[rows[i]];
        if (s->node_seen[node] != stamp) {
            s->node_seen[node] = stamp;
            length[node] = 0;
            last[node] = -1;
        }
        before[i] = last[node];
        last[node] = i;
        if (++length[node] < each) continue;
        length[node] = 0;
        for (i64 at = i, k = each - 1; k >= 0; k--, at = before[at]) chosen[found + k] = rows[at];
        found += each;
    }
    release(s, m);
    return found == wanted ? wanted : 0;
}

static int by_speed(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* As `Offers._best_pods`. */
static i64 best_pods(Run *r, i64 job, const Candidate *a, i64 count, i64 *chosen, double *most) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 wanted = c->wanted[job], found = 0;
    *most = 0;
    Mark m = mark_of(s);
    double *speeds = TAKE(s, double, count);
    i64 *at = TAKE(s, i64, count), *gang = TAKE(s, i64, wanted);
    double *loss_of = TAKE(s, double, c->gpus);
    for (i64 i = 0; i < count; i++) {
        speeds[i] = a[i].speed;
        loss_of[a[i].row] = a[i].loss;
    }
    qsort(speeds, (size_t)count, sizeof *speeds, by_speed);
    for (i64 i = 0; i < count; i++) {
        if (i > 0 && speeds[i] == speeds[i - 1]) continue;
        i64 n = 0;
        for (i64 k = 0; k < count; k++) {
            if (a[k].speed >= speeds[i]) at[n++] = a[k].row;
        }
        if (whole_pods(r, job, at, n, gang) == 0) continue;
        double loss = 0;
        for (i64 k = 0; k < wanted; k++) loss += loss_of[gang[k]];
        double gain = c->rate[job] * speeds[i] * (double)wanted - loss;
        if (gain > *most) {
            *most = gain;
            found = wanted;
            memcpy(chosen, gang, (size_t)wanted * sizeof *chosen);
        }
    }
    release(s, m);
    return found;
}

/* As `Offers._best_gang`: `a` comes cheapest first. Return how many rows were chosen. */
static i64 best_gang(Run *r, i64 job, const Candidate *a, i64 count, i64 *chosen, double *most) {
    const Cycle *c = r->c;
    i64 wanted = c->wanted[job];
    if (c->per_pod[job] > 1) return best_pods(r, job, a, count, chosen, most);
    double above = -INFINITY, best_above = 0;
    int any = 0;
    *most = 0;
    for (;;) {
        double floor = INFINITY, loss = 0;
        i64 n = 0;
        for (i64 i = 0; i < count && n < wanted; i++) {
            if (!(a[i].speed > above)) continue;
            if (a[i].speed < floor) floor = a[i].speed;
            loss += a[i].loss;
            n++;
        }
        if (n < wanted) break;
        double gain = c->rate[job] * floor * (double)wanted - loss;
        if (gain > *most) {
            *most = gain;
            best_above = above;
            any = 1;
        }
        above = floor;
    }
    if (!any) return 0;
    for (i64 i = 0, n = 0; n < wanted; i++) {
        if (a[i].speed > best_above) chosen[n++] = a[i].row;
    }
    return wanted;
}

/* As `Valuation.speed_at`. */
static double speed_at(Run *r, i64 job, const i64 *rows, i64 count) {
    double slowdown = r->c->locality ? r->c->spread_slowdown[job] : 0;
    if (slowdown == 0 || count < 2) return 1;
    return count_nodes(r, rows, count) > fewest_nodes(r->c, job) ? 1 / (1 + slowdown) : 1;
}

/* As `Offers._on_fewest_nodes`: move those of `a` that are on the best of the fewest nodes to the
 * front of `near`, in their order; return how many. */
static i64 on_fewest_nodes(Run *r, i64 job, const Candidate *a, i64 count, Candidate *near) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 fewest = fewest_nodes(c, job), each = c->per_pod[job], wanted = c->wanted[job];
    Mark m = mark_of(s);
    i64 *room = TAKE(s, i64, c->nodes), *taken = TAKE(s, i64, c->nodes);
    double *floor = TAKE(s, double, c->nodes), *cost = TAKE(s, double, c->nodes);
    double *worth = TAKE(s, double, c->nodes);
    i64 *names = TAKE(s, i64, c->nodes), n = 0, stamp = ++s->stamp;
    for (i64 i = 0; i < count; i++) {
        i64 node = c->node[a[i].row];
        if (s->node_seen[node] != stamp) {
            s->node_seen[node] = stamp;
            room[node] = taken[node] = 0;
            floor[node] = INFINITY;
            cost[node] = 0;
            names[n++] = node;
        }
        room[node]++;
    }
    for (i64 i = 0; i < n; i++) {
        i64 node = names[i];
        room[node] -= room[node] % each;
        if (room[node] > wanted) room[node] = wanted;
    }
    for (i64 i = 0; i < count; i++) {
        i64 node = c->node[a[i].row];
        if (taken[node] >= room[node]) continue;
        taken[node]++;
        if (a[i].speed < floor[node]) floor[node] = a[i].speed;
        cost[node] += a[i].loss;
    }
    for (i64 i = 0; i < n; i++) {
        i64 node = names[i];
        double slowest = floor[node] < 1 ? floor[node] : 1;
        worth[node] = room[node] > 0 ? c->rate[job] * slowest * (double)room[node] - cost[node]
                                     : -INFINITY;
    }
    u8 *chosen = TAKE(s, u8, c->nodes);
    for (i64 i = 0; i < n; i++) chosen[names[i]] = 0;
    i64 one = -1;
    if (fewest == 1) {
        for (i64 i = 0; i < n; i++) {
            i64 node = names[i];
            if (room[node] < wanted) continue;
            if (one < 0 || worth[node] > worth[one] || (worth[node] == worth[one] && node < one)) {
                one = node;
            }
        }
        if (one >= 0) chosen[one] = 1;
    } else {
        for (i64 k = 0; k < fewest && k < n; k++) {
            i64 best = -1;
            for (i64 i = 0; i < n; i++) {
                i64 node = names[i];
                if (chosen[node]) continue;
                if (best < 0 || room[node] > room[best] ||
                    (room[node] == room[best] &&
                     (worth[node] > worth[best] || (worth[node] == worth[best] && node < best)))) {
                    best = node;
                }
            }
            chosen[best] = 1;
        }
    }
    i64 found = 0;
    for (i64 i = 0; i < count; i++) {
        if (chosen[c->node[a[i].row]]) near[found++] = a[i];
    }
    release(s, m);
    return found;
}

/* As `Offers.best` for a gang, on the candidates where it may and should be, in the order of their
 * rows. Write the rows to `chosen`, (wanted,), and return how many they are: 0 for nowhere. */
static i64 best_place(Run *r, i64 job, const Candidate *a, i64 count, i64 *chosen, double *gain) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 wanted = c->wanted[job];
    *gain = 0;
    if (count < wanted) return 0;
    Mark m = mark_of(s);
    Candidate *some = TAKE(s, Candidate, count);
    i64 n = 0, found;
    double most;
    if (c->per_pod[job] == 1) { /* as `cheap_enough` */
        double *key = TAKE(s, double, count);
        for (i64 i = 0; i < count; i++) key[i] = -a[i].speed;
        smallest_first(key, count, wanted);
        double slowest = -INFINITY, dearest = -INFINITY;
        for (i64 i = 0; i < wanted; i++) {
            if (key[i] > slowest) slowest = key[i];
        }
        for (i64 i = 0; i < count; i++) {
            if (a[i].speed >= -slowest) key[n++] = a[i].loss;
        }
        smallest_first(key, n, wanted);
        for (i64 i = 0; i < wanted; i++) {
            if (key[i] > dearest) dearest = key[i];
        }
        n = 0;
        for (i64 i = 0; i < count; i++) {
            if (a[i].loss <= dearest) some[n++] = a[i];
        }
    } else {
        memcpy(some, a, (size_t)count * sizeof *some);
        n = count;
    }
    sort_cheapest(s, some, n);
    found = best_gang(r, job, some, n, chosen, &most);
    *gain = most;
    double speed = found ? speed_at(r, job, chosen, found) : 1;
    if (speed != 1) {
        memcpy(some, a, (size_t)count * sizeof *some);
        sort_cheapest(s, some, count);
        u8 *is_chosen = TAKE(s, u8, c->gpus);
        double cost = 0;
        for (i64 i = 0; i < count; i++) is_chosen[some[i].row] = 0;
        for (i64 i = 0; i < found; i++) is_chosen[chosen[i]] = 1;
        for (i64 i = 0; i < count; i++) {
            if (is_chosen[some[i].row]) cost += some[i].loss;
        }
        *gain = (most + cost) * speed - cost;
        Candidate *near = TAKE(s, Candidate, count);
        i64 *together = TAKE(s, i64, wanted);
        double kept;
        n = on_fewest_nodes(r, job, some, count, near);
        i64 fits = best_gang(r, job, near, n, together, &kept);
        if (fits && kept >= *gain) {
            memcpy(chosen, together, (size_t)fits * sizeof *chosen);
            *gain = kept;
            found = fits;
        } else if (!(*gain > 0)) {
            *gain = 0;
            found = 0;
        }
    }
    release(s, m);
    return found;
}

/* --- free shares go to the waiting jobs that gain most there: dispatch/fill.py ------------------ */

typedef struct {
    Run *r;
    i64 heads, rows;                       /* heads: one job of each demand */
    i64 *job;                              /* (heads,) */
    i64 *row, *at;                         /* (rows,) of the board, and back: (gpus,), -1 elsewhere */
    double *gain, *speed, *loss, *slowed;  /* (heads, rows) */
    u8 *allowed;                           /* (heads, rows) */
    double *present, *worth;               /* (rows,) */
    double *key;                           /* (heads,) what goes first */
    i64 *best_at;                          /* (heads,) of `row`, for jobs of one GPU; -1: nowhere */
    u8 *open, *rough, *dropped;            /* (heads,) gangs whose key is a bound; a rough one */
    i64 **place;                           /* (heads,) rows of a gang */
    i64 *place_count;
} Places;

static void look_at(Places *o, i64 at) {
    Cycle *c = o->r->c;
    Place p;
    place_of(c, o->row[at], &p);
    for (i64 h = 0; h < o->heads; h++) {
        i64 k = h * o->rows + at;
        if (o->dropped[h]) {
            o->gain[k] = -INFINITY;
            continue;
        }
        Offer found = offer_of(c, o->job[h], &p);
        o->speed[k] = found.speed;
        o->loss[k] = found.loss;
        o->slowed[k] = found.slowed;
        o->allowed[k] = (u8)found.allowed;
        if (found.allowed) { /* the same for each job that is allowed there */
            o->present[at] = found.present;
            o->worth[at] = found.worth;
        }
        o->gain[k] = gain_of(c, o->job[h], &found);
    }
}

/* Work the gains of one head out anew: another job of the same demand is in its place. */
static void look_again(Places *o, i64 h) {
    for (i64 at = 0; at < o->rows; at++) {
        i64 k = h * o->rows + at;
        Offer found = {o->speed[k], o->loss[k], o->slowed[k], o->present[at], o->worth[at],
                       o->allowed[k]};
        o->gain[k] = o->dropped[h] ? -INFINITY : gain_of(o->r->c, o->job[h], &found);
    }
}

static double largest_gain(const Places *o, i64 h) {
    double most = -INFINITY;
    const double *gain = o->gain + h * o->rows;
    for (i64 at = 0; at < o->rows; at++) {
        if (gain[at] > most) most = gain[at];
    }
    return most;
}

static double key_of(const Places *o, i64 h, double gain) {
    const Cycle *c = o->r->c;
    return c->best_pair ? gain / (double)c->wanted[o->job[h]] : c->rate[o->job[h]];
}

static void find_single(Places *o, i64 h) {
    const double *gain = o->gain + h * o->rows;
    i64 best = 0;
    for (i64 at = 1; at < o->rows; at++) {
        if (gain[at] > gain[best]) best = at;
    }
    int any = gain[best] > 0;
    o->best_at[h] = any ? best : -1;
    o->key[h] = any ? key_of(o, h, gain[best]) : -INFINITY;
}

static void tighten(Places *o, i64 h) {
    Scratch *s = o->r->s;
    i64 wanted = o->r->c->wanted[o->job[h]];
    double most = -INFINITY;
    Mark m = mark_of(s);
    if (wanted <= o->rows) {
        double *gain = TAKE(s, double, o->rows);
        memcpy(gain, o->gain + h * o->rows, (size_t)o->rows * sizeof *gain);
        most = sum_of_largest(gain, o->rows, wanted) / (double)wanted;
    }
    release(s, m);
    o->key[h] = most > 0 ? most * ROUNDED_UP : -INFINITY;
    o->rough[h] = 0;
}

static void find_gang(Places *o, i64 h) {
    Scratch *s = o->r->s;
    Mark m = mark_of(s);
    Candidate *a = TAKE(s, Candidate, o->rows);
    i64 n = 0;
    for (i64 at = 0; at < o->rows; at++) {
        i64 k = h * o->rows + at;
        if (o->gain[k] > -INFINITY) {
            Candidate one = {o->row[at], o->speed[k], o->loss[k]};
            a[n++] = one;
        }
    }
    double gain;
    o->place_count[h] = best_place(o->r, o->job[h], a, n, o->place[h], &gain);
    o->key[h] = o->place_count[h] ? key_of(o, h, gain) : -INFINITY;
    o->open[h] = 0;
    release(s, m);
}

static void bound_gangs(Places *o) {
    const Cycle *c = o->r->c;
    for (i64 h = 0; h < o->heads; h++) {
        if (!o->open[h]) continue;
        double most = largest_gain(o, h);
        double key = c->best_pair ? most : c->rate[o->job[h]];
        o->key[h] = most > 0 ? key * ROUNDED_UP : -INFINITY;
        o->rough[h] = 1;
    }
}

/* Return the head that goes first, of equals the first job of the board; -1: none gains. */
static i64 first_head(Places *o) {
    for (;;) {
        double most = -INFINITY;
        for (i64 h = 0; h < o->heads; h++) {
            if (o->key[h] > most) most = o->key[h];
        }
        if (most == -INFINITY) return -1;
        int undecided = 0;
        i64 best = -1;
        for (i64 h = 0; h < o->heads; h++) {
            if (o->key[h] != most) continue;
            if (o->open[h]) {
                undecided = 1;
            } else if (best < 0 || o->job[h] < o->job[best]) {
                best = h;
            }
        }
        if (!undecided) return best;
        for (i64 h = 0; h < o->heads; h++) {
            if (!o->open[h] || o->key[h] != most) continue;
            if (o->rough[h] && o->r->c->best_pair) {
                tighten(o, h);
            } else {
                find_gang(o, h);
            }
        }
    }
}

/* As `Offers.renew` and `_Places.renew`, after `job` of head `front` has started. */
static void renew(Places *o, i64 front, i64 job) {
    Run *r = o->r;
    Cycle *c = r->c;
    Scratch *s = r->s;
    refresh(r);
    Mark m = mark_of(s);
    u8 *changed = TAKE(s, u8, o->rows);
    memset(changed, 0, (size_t)o->rows);
    i64 *at = TAKE(s, i64, o->rows), n = 0, count;
    i64 *slower = with_partners(r, job, &count);
    for (i64 i = 0; i < count; i++) {
        for (i64 k = 0; k < s->rows_count[slower[i]]; k++) {
            i64 where = o->at[s->rows_of[slower[i]][k]];
            if (where < 0 || changed[where]) continue;
            changed[where] = 1;
            at[n++] = where;
        }
    }
    for (i64 i = 0; i < n; i++) look_at(o, at[i]);
    look_again(o, front);
    for (i64 h = 0; h < o->heads; h++) {
        double most = -INFINITY;
        for (i64 i = 0; i < n; i++) {
            double gain = o->gain[h * o->rows + at[i]];
            if (gain > most) most = gain;
        }
        if (c->wanted[o->job[h]] == 1) {
            int again = h == front || most > o->key[h] ||
                        (o->best_at[h] >= 0 && changed[o->best_at[h]]);
            if (again) find_single(o, h);
        } else if (!o->open[h]) {
            int may_change = h == front || most > -INFINITY;
            for (i64 i = 0; i < o->place_count[h] && !may_change; i++) {
                may_change = changed[o->at[o->place[h][i]]];
            }
            o->open[h] = (u8)may_change;
        }
    }
    release(s, m);
    bound_gangs(o);
}

/* As `fill`: `waiting` is in order of worth; `started` (waiting,) says who was started. */
static void fill(Run *r, const i64 *waiting, i64 count, u8 *started) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    memset(started, 0, (size_t)count);
    if (count == 0) return;
    refresh(r);
    Mark m = mark_of(s);
    Places o;
    o.r = r;
    o.row = TAKE(s, i64, c->gpus);
    o.at = TAKE(s, i64, c->gpus);
    o.rows = o.heads = 0;
    for (i64 row = 0; row < c->gpus; row++) {
        o.at[row] = -1;
        if (c->count[row] < most_jobs(c, row)) {
            o.at[row] = o.rows;
            o.row[o.rows++] = row;
        }
    }
    if (o.rows == 0) {
        release(s, m);
        return;
    }
    /* The waiting jobs of each demand, in their order. */
    i64 most = c->demands_tried < count ? c->demands_tried : count;
    i64 *next = TAKE(s, i64, count), *queue = TAKE(s, i64, most), *last = TAKE(s, i64, most);
    o.job = TAKE(s, i64, most);
    for (i64 i = 0; i < count; i++) {
        i64 job = waiting[i];
        next[i] = -1;
        if (c->wanted[job] > o.rows) continue;
        i64 h = 0;
        while (h < o.heads && c->demand[o.job[h]] != c->demand[job]) h++;
        if (h < o.heads) {
            next[last[h]] = i;
            last[h] = i;
        } else if (o.heads < most) {
            queue[h] = last[h] = i;
            o.job[h] = job;
            o.heads++;
        }
    }
    if (o.heads == 0) {
        release(s, m);
        return;
    }
    i64 all = o.heads * o.rows;
    o.gain = TAKE(s, double, all);
    o.speed = TAKE(s, double, all);
    o.loss = TAKE(s, double, all);
    o.slowed = TAKE(s, double, all);
    o.allowed = TAKE(s, u8, all);
    o.present = TAKE(s, double, o.rows);
    o.worth = TAKE(s, double, o.rows);
    o.key = TAKE(s, double, o.heads);
    o.best_at = TAKE(s, i64, o.heads);
    o.open = TAKE(s, u8, o.heads);
    o.rough = TAKE(s, u8, o.heads);
    o.dropped = TAKE(s, u8, o.heads);
    o.place = TAKE(s, i64 *, o.heads);
    o.place_count = TAKE(s, i64, o.heads);
    memset(o.dropped, 0, (size_t)o.heads);
    for (i64 at = 0; at < o.rows; at++) look_at(&o, at);
    for (i64 h = 0; h < o.heads; h++) {
        i64 wanted = c->wanted[o.job[h]];
        o.place[h] = TAKE(s, i64, wanted);
        o.place_count[h] = 0;
        o.best_at[h] = -1;
        o.open[h] = o.rough[h] = wanted > 1;
        if (wanted == 1) find_single(&o, h);
    }
    bound_gangs(&o);
    for (;;) {
        i64 front = first_head(&o);
        if (front < 0) break;
        i64 job = o.job[front];
        if (c->wanted[job] == 1) {
            start(r, job, &o.row[o.best_at[front]], 1);
        } else {
            start(r, job, o.place[front], o.place_count[front]);
        }
        started[queue[front]] = 1;
        queue[front] = next[queue[front]];
        if (queue[front] < 0) {
            o.dropped[front] = 1;
            for (i64 at = 0; at < o.rows; at++) o.gain[front * o.rows + at] = -INFINITY;
            o.key[front] = -INFINITY;
            o.open[front] = 0;
            int any = 0;
            for (i64 k = 0; k < all && !any; k++) any = o.gain[k] > 0;
            if (!any) {
                refresh(r);
                break;
            }
        } else {
            o.job[front] = waiting[queue[front]];
        }
        renew(&o, front, job);
    }
    release(s, m);
}

/* --- running jobs make room for those worth far more: dispatch/exchange.py ---------------------- */

/* As `Valuation.in_place_of`: whose place is best for `job`, of one GPU; 0 for nobody's. */
static int in_place_of(Run *r, i64 job, const i64 *victims, i64 count, i64 *victim, i64 *row) {
    Cycle *c = r->c;
    double most = -INFINITY;
    for (i64 i = 0; i < count; i++) {
        i64 leaves = victims[i];
        double now = value_of(c, leaves);
        for (i64 at = 0; at < r->s->rows_count[leaves]; at++) {
            Place p;
            u8 keep[MAX_SLOTS];
            place_of(c, r->s->rows_of[leaves][at], &p);
            for (i64 k = 0; k < c->slots; k++) keep[k] = p.there[k] != leaves;
            without(c, &p, keep);
            double recovered = 0;
            for (i64 k = 0; k < c->slots; k++) {
                i64 there = p.there[k];
                if (there < 0) continue;
                double before = p.now[k];
                if (c->wanted[there] == 1) p.now[k] = 1 / (1 + p.slowdown[k]);
                recovered += c->rate[there] * (p.now[k] - before);
            }
            Offer o = offer_of(c, job, &p);
            double gain = c->rate[job] * o.speed - o.loss;
            if (!o.allowed || !(gain > 0)) continue;
            double net = gain + recovered - now;
            if (net <= 0 && c->size[leaves] == 1) continue;
            if (net > most) {
                most = net;
                *victim = leaves;
                *row = p.row;
            }
        }
    }
    return most > -INFINITY;
}

/* As `Valuation.best_without`: where `job` gains most if the jobs marked as `gone` had left. */
static i64 best_without(Run *r, i64 job, i64 *chosen) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 wanted = c->wanted[job], rows = 0, hits = 0;
    Mark m = mark_of(s);
    i64 *row_at = TAKE(s, i64, c->gpus), *hit = TAKE(s, i64, c->gpus);
    for (i64 row = 0; row < c->gpus; row++) {
        int leaves = 0;
        for (i64 k = row * c->slots; k < (row + 1) * c->slots; k++) {
            leaves |= c->residents[k] >= 0 && s->gone[c->residents[k]];
        }
        hit[row] = leaves ? hits++ : -1;
        if (leaves || c->count[row] < most_jobs(c, row)) row_at[rows++] = row;
    }
    if (rows < wanted) {
        release(s, m);
        return 0;
    }
    Place *left = TAKE(s, Place, hits);
    i64 *partner = TAKE(s, i64, hits * c->slots), partners = 0;
    for (i64 i = 0; i < rows; i++) {
        i64 row = row_at[i];
        if (hit[row] < 0) continue;
        u8 keep[MAX_SLOTS];
        Place *p = &left[hit[row]];
        place_of(c, row, p);
        for (i64 k = 0; k < c->slots; k++) keep[k] = p->there[k] >= 0 && !s->gone[p->there[k]];
        without(c, p, keep);
        for (i64 k = 0; k < c->slots; k++) {
            i64 there = p->there[k];
            if (there >= 0 && !s->mark[there]) {
                s->mark[there] = 1;
                partner[partners++] = there;
            }
        }
    }
    unmark(r, partner, partners);
    /* Those that were beside one who left are faster then. */
    double *now = TAKE(s, double, partners);
    for (i64 i = 0; i < partners; i++) {
        i64 of = partner[i];
        double most = 0;
        for (i64 at = 0; at < s->rows_count[of]; at++) {
            i64 row = s->rows_of[of][at];
            const double *slowdown = hit[row] >= 0 ? left[hit[row]].slowdown
                                                   : c->resident_slowdown + row * c->slots;
            for (i64 k = 0; k < c->slots; k++) {
                if (c->residents[row * c->slots + k] == of && slowdown[k] > most) most = slowdown[k];
            }
        }
        now[i] = c->predicted_speed[of];
        c->predicted_speed[of] = 1 / (1 + most) * spread_speed(c, of);
    }
    Candidate *a = TAKE(s, Candidate, rows);
    i64 n = 0, found = 0;
    double most = 0;
    for (i64 i = 0; i < rows; i++) {
        i64 row = row_at[i];
        Place other, *p = &other;
        if (hit[row] >= 0) {
            p = &left[hit[row]];
            for (i64 k = 0; k < c->slots; k++) {
                p->now[k] = p->there[k] >= 0 ? c->predicted_speed[p->there[k]] : 0;
            }
        } else {
            place_of(c, row, p);
        }
        Offer o = offer_of(c, job, p);
        double gain = gain_of(c, job, &o);
        if (gain == -INFINITY) continue;
        if (wanted == 1) {
            if (gain > most) {
                most = gain;
                chosen[0] = row;
                found = 1;
            }
            continue;
        }
        Candidate one = {row, o.speed, o.loss};
        a[n++] = one;
    }
    if (wanted > 1) found = best_place(r, job, a, n, chosen, &most);
    for (i64 i = 0; i < partners; i++) c->predicted_speed[partner[i]] = now[i];
    release(s, m);
    return found;
}

/* As `Valuation.gains_at`. */
static int gains_at(Run *r, i64 job, const i64 *rows, i64 count) {
    Cycle *c = r->c;
    refresh(r);
    Mark m = mark_of(r->s);
    Offer *o = TAKE(r->s, Offer, count);
    double floor = INFINITY, loss = 0;
    int well = 1;
    for (i64 i = 0; i < count && well; i++) {
        Place p;
        place_of(c, rows[i], &p);
        o[i] = offer_of(c, job, &p);
        well = o[i].allowed;
        if (o[i].speed < floor) floor = o[i].speed;
        loss += o[i].loss;
    }
    for (i64 i = 0; i < count && well; i++) well = worthwhile(c, job, floor, &o[i]);
    release(r->s, m);
    return well && c->rate[job] * (floor * speed_at(r, job, rows, count)) * (double)count > loss;
}

/* What the waiting jobs would yield on GPUs that a victim leaves, as `_Queue`. */
typedef struct {
    Run *r;
    const i64 *waiting;
    i64 count;
    u8 *waits; /* (count,) */
} Queue;

/* As `_Queue.repays`; NaN for `gained`: what the job yields alone. `at` is its place. */
static int repays(const Queue *q, i64 at, i64 gpus, double lost, double gained) {
    const Cycle *c = q->r->c;
    i64 job = q->waiting[at], rest = gpus - c->wanted[job];
    if (isnan(gained)) gained = c->rate[job] * (double)c->wanted[job];
    double least = c->preempt_factor * lost;
    if (gained < least) {
        double more = 0;
        for (i64 i = at + 1; i < q->count && rest > 0; i++) {
            i64 after = q->waiting[i];
            if (!q->waits[i] || c->wanted[after] > rest) continue;
            rest -= c->wanted[after];
            more += c->rate[after] * (double)c->wanted[after];
        }
        gained += more;
    }
    return gained >= least;
}

static int by_number(const void *a, const void *b) {
    i64 x = *(const i64 *)a, y = *(const i64 *)b;
    return (x > y) - (x < y);
}

typedef struct {
    double key;
    i64 job;
} Keyed;

static int by_key(const void *a, const void *b) {
    const Keyed *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->job > y->job) - (x->job < y->job);
}

/* Sort running jobs, first what yields least per GPU, as `_by_value`. */
static void sort_by_value(Run *r, i64 *jobs, i64 count) {
    Mark m = mark_of(r->s);
    Keyed *a = TAKE(r->s, Keyed, count);
    refresh(r);
    for (i64 i = 0; i < count; i++) {
        a[i].key = r->c->rate[jobs[i]] * r->c->predicted_speed[jobs[i]];
        a[i].job = jobs[i];
    }
    qsort(a, (size_t)count, sizeof *a, by_key);
    for (i64 i = 0; i < count; i++) jobs[i] = a[i].job;
    release(r->s, m);
}

/* As `_replace`: put the gang on `place` without the jobs `off`. Without `queue`, it need not pay.
 * Write those preempted to `gone` and return how many; -1, and nothing is changed, where that does
 * not pay. */
static i64 replace(Run *r, i64 job, i64 at, const i64 *off, i64 off_count, const i64 *place,
                   i64 place_count, const Queue *queue, i64 *gone) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 room = place_count * c->slots + off_count;
    for (i64 i = 0; i < off_count; i++) room += s->rows_count[off[i]] * c->slots;
    i64 *concerned = TAKE(s, i64, room), n = 0;
    for (i64 i = 0; i < off_count; i++) {
        if (!s->mark[off[i]]) concerned[n++] = off[i];
        s->mark[off[i]] = 1;
    }
    n = add_residents(r, place, place_count, concerned, n);
    for (i64 i = 0; i < off_count; i++) {
        n = add_residents(r, s->rows_of[off[i]], s->rows_count[off[i]], concerned, n);
    }
    unmark(r, concerned, n);
    qsort(concerned, (size_t)n, sizeof *concerned, by_number);
    refresh(r);
    double before = 0, after = 0;
    for (i64 i = 0; i < n; i++) before += value_of(c, concerned[i]);
    Aside *aside = TAKE(s, Aside, off_count);
    for (i64 i = 0; i < off_count; i++) set_aside(r, off[i], &aside[i]);
    place_job(r, job, place, place_count);
    i64 left = 0;
    for (i64 i = off_count - 1; i >= 0; i--) {
        Aside *one = &aside[i];
        if (gains_at(r, one->job, one->rows, one->count)) {
            place_job(r, one->job, one->rows, one->count);
        } else {
            gone[left++] = one->job;
        }
    }
    refresh(r);
    for (i64 i = 0; i < n; i++) {
        if (c->on_gpus[concerned[i]]) after += value_of(c, concerned[i]);
    }
    double gained = value_of(c, job), lost = before - after;
    remove_job(r, job);
    i64 freed = 0;
    for (i64 i = 0; i < left; i++) freed += c->size[gone[i]];
    if (freed < place_count) freed = place_count;
    if (queue != NULL && !repays(queue, at, freed, lost, gained)) {
        for (i64 i = 0; i < off_count; i++) {
            if (c->on_gpus[aside[i].job]) remove_job(r, aside[i].job);
        }
        for (i64 i = off_count - 1; i >= 0; i--) put_back(r, &aside[i]);
        return -1;
    }
    for (i64 i = 0; i < left; i++) act(r, STOP, gone[i], NULL, 0);
    start(r, job, place, place_count);
    return left;
}

/* --- which residents a waiting gang would best replace: dispatch/swap.py ------------------------ */

/* Columns of residents (gpus, slots) of the board as it is, as in `Swaps`. */
typedef struct {
    Run *r;
    i64 slots;
    double *speed, *rate, *yields, *spread, *recovered;
    i64 *size, *crowded;
    u8 *stays, *full; /* (gpus, slots), (gpus,) */
} Swaps;

/* Return what the neighbours of `job` would yield more if they were alone. */
static double neighbours_recover(Run *r, i64 job) {
    Cycle *c = r->c;
    const i64 *rows = r->s->rows_of[job];
    i64 count = r->s->rows_count[job], slots = c->slots;
    double total = 0;
    for (i64 i = 0; i < count; i++) {
        const i64 *there = c->residents + rows[i] * slots;
        i64 own = 0;
        while (own < slots - 1 && there[own] != job) own++;
        for (i64 k = 0; k < slots; k++) {
            if (k == own || there[k] < 0) continue;
            int seen = 0; /* once for the same two slots, however many GPUs */
            for (i64 j = 0; j < i && !seen; j++) {
                const i64 *other = c->residents + rows[j] * slots;
                seen = other[own] == job && other[k] == there[k];
            }
            if (seen) continue;
            double yields = c->rate[there[k]] * (double)c->size[there[k]];
            total += yields * (1 - c->predicted_speed[there[k]]);
        }
    }
    return total;
}

static void swaps_of(Run *r, Swaps *w) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    refresh(r);
    w->r = r;
    w->slots = 1;
    i64 largest = 1;
    int crowd = 0;
    for (i64 row = 0; row < c->gpus; row++) {
        if (c->count[row] > w->slots) w->slots = c->count[row];
        for (i64 k = 0; k < c->slots; k++) {
            i64 there = c->residents[row * c->slots + k];
            if (there < 0) continue;
            if (c->size[there] > largest) largest = c->size[there];
            crowd |= c->count[row] > 1;
        }
    }
    if (w->slots > c->slots) w->slots = c->slots;
    i64 all = c->gpus * w->slots;
    w->speed = TAKE(s, double, all);
    w->rate = TAKE(s, double, all);
    w->yields = TAKE(s, double, all);
    w->spread = TAKE(s, double, all);
    w->recovered = TAKE(s, double, all);
    w->size = TAKE(s, i64, all);
    w->crowded = TAKE(s, i64, all);
    w->stays = TAKE(s, u8, all);
    w->full = TAKE(s, u8, c->gpus);
    crowd = crowd && largest > 1;
    i64 number = ++s->stamp;
    for (i64 row = 0; row < c->gpus; row++) {
        w->full[row] = c->count[row] >= most_jobs(c, row);
        for (i64 k = 0; k < w->slots; k++) {
            i64 at = row * w->slots + k, there = c->residents[row * c->slots + k];
            w->size[at] = w->crowded[at] = 1;
            w->speed[at] = w->rate[at] = w->yields[at] = w->recovered[at] = 0;
            w->spread[at] = 1;
            w->stays[at] = 0;
            if (there < 0) continue;
            w->size[at] = c->size[there];
            w->speed[at] = c->predicted_speed[there];
            w->rate[at] = c->rate[there];
            w->yields[at] = w->rate[at] * (double)w->size[at];
            w->spread[at] = spread_speed(c, there);
            w->stays[at] = !s->may_stop[there];
            if (!crowd) continue;
            i64 beside = 0;
            for (i64 i = 0; i < s->rows_count[there]; i++) {
                beside += c->count[s->rows_of[there][i]] > 1;
            }
            if (beside == 0) continue;
            w->crowded[at] = beside;
            if (s->recovered_at[there] != number) {
                s->recovered_at[there] = number;
                s->recovered[there] = neighbours_recover(r, there);
            }
            w->recovered[at] = s->recovered[there];
        }
    }
}

/* As `Swaps._gains`, of one gang on one GPU; `leaves` (slots,) says who leaves for that. */
static double swap_gain(const Swaps *w, i64 gang, i64 row, int exact, u8 *leaves) {
    Cycle *c = w->r->c;
    i64 slots = w->slots, wanted = c->wanted[gang];
    double worth = c->rate[gang], factor = c->preempt_factor;
    const double *own_of = c->own + c->table[gang] * c->classes;
    const double *caused_of = c->caused + c->table[gang] * c->classes;
    double leaving[MAX_SLOTS], staying[MAX_SLOTS], speed_of[MAX_SLOTS], cost_of[MAX_SLOTS];
    double extra[MAX_SLOTS], gain, sum = 0;
    u8 there_of[MAX_SLOTS], cheaper[MAX_SLOTS];
    if (most_jobs(c, row) <= 0) return -INFINITY;
    for (i64 k = 0; k < slots; k++) {
        i64 at = row * w->slots + k, there = c->residents[row * c->slots + k];
        i64 size = w->size[at], used = size < wanted ? size : wanted;
        i64 kind = c->resident_class[row * c->slots + k];
        double yields = w->yields[at], speed = w->speed[at];
        double rest = w->recovered[at] / (double)size + worth / factor;
        double cost = (yields * speed - (double)(size - used) * rest) / (double)used;
        there_of[k] = there >= 0;
        leaving[k] = w->stays[at] ? INFINITY : cost;
        sum += leaving[k];
        double own = 1 / (1 + own_of[kind]);
        double theirs = 1 / (1 + caused_of[kind]) * w->spread[at];
        double lost = yields * (speed - theirs);
        i64 crowded = w->crowded[at] < used ? w->crowded[at] : used;
        i64 of_gang = lost > 0 ? used : crowded;
        int may = there >= 0 && (own + theirs >= 1 + c->min_gain || size > 1);
        if (exact && may) {
            Place p;
            u8 keep[MAX_SLOTS] = {0};
            keep[k] = 1;
            place_of(c, row, &p);
            without(c, &p, keep);
            double slowed = 1 - theirs > 0 ? 1 - theirs : 0;
            may = allows(c, gang, &p) &&
                  shares_well(c, worth, own, w->rate[at] * slowed * ((double)size / (double)used),
                              slowed, 1, w->rate[at]);
        }
        staying[k] = may ? lost / (double)of_gang : INFINITY;
        speed_of[k] = own;
        double kept = there >= 0 ? staying[k] : 0;
        cheaper[k] = kept <= leaving[k];
        cost_of[k] = cheaper[k] ? kept : leaving[k];
        extra[k] = there < 0 ? INFINITY : cheaper[k] && isfinite(kept) ? leaving[k] - kept : 0;
        leaves[k] = there_of[k];
    }
    gain = worth - factor * sum;
    for (i64 k = 0; k < slots; k++) {
        double cost = 0, least = INFINITY;
        int any = 0;
        i64 first = -1;
        for (i64 other = 0; other < slots; other++) {
            if (other == k) continue;
            cost += cost_of[other];
            any |= there_of[other] && !cheaper[other];
            if (first < 0 || extra[other] < extra[first]) first = other;
            if (extra[other] < least) least = extra[other];
        }
        cost = staying[k] + cost;
        int stuck = w->full[row] && !any;
        if (stuck) cost += least;
        double beside = worth * speed_of[k] - factor * cost;
        if (!(beside > gain)) continue;
        gain = beside;
        for (i64 other = 0; other < slots; other++) {
            if (other == k) continue;
            leaves[other] = (there_of[other] && !cheaper[other]) || (stuck && other == first);
        }
        leaves[k] = 0;
    }
    return gain;
}

/* As `Swaps.pays`. */
static int swap_pays(const Swaps *w, i64 gang) {
    Cycle *c = w->r->c;
    Scratch *s = w->r->s;
    i64 wanted = c->wanted[gang];
    if (wanted > c->gpus) return 0;
    Mark m = mark_of(s);
    double *gain = TAKE(s, double, c->gpus);
    u8 leaves[MAX_SLOTS];
    for (i64 row = 0; row < c->gpus; row++) gain[row] = swap_gain(w, gang, row, 0, leaves);
    int pays = sum_of_largest(gain, c->gpus, wanted) >= 0;
    release(s, m);
    return pays;
}

/* As `Swaps.victims`: write the jobs that the gang would best replace, return how many. */
static i64 swap_victims(const Swaps *w, i64 gang, i64 *victims) {
    Cycle *c = w->r->c;
    Scratch *s = w->r->s;
    i64 wanted = c->wanted[gang], n = 0;
    Mark m = mark_of(s);
    Keyed *best = TAKE(s, Keyed, c->gpus);
    double *key = TAKE(s, double, c->gpus);
    u8 *leaves = TAKE(s, u8, c->gpus * MAX_SLOTS);
    for (i64 row = 0; row < c->gpus; row++) {
        key[row] = -swap_gain(w, gang, row, 1, leaves + row * MAX_SLOTS);
    }
    /* The best rows, of equals the first ones. */
    double *sorted = TAKE(s, double, c->gpus), sum = 0;
    memcpy(sorted, key, (size_t)c->gpus * sizeof *sorted);
    smallest_first(sorted, c->gpus, wanted);
    double bound = -INFINITY;
    i64 below = 0;
    for (i64 i = 0; i < wanted; i++) {
        if (sorted[i] > bound) bound = sorted[i];
    }
    for (i64 row = 0; row < c->gpus; row++) below += key[row] < bound;
    i64 equal = wanted - below;
    for (i64 row = 0; row < c->gpus; row++) {
        if (!(key[row] < bound) && !(key[row] == bound && equal-- > 0)) continue;
        best[n].key = key[row];
        best[n++].job = row;
        sum -= key[row];
    }
    i64 found = 0;
    if (sum >= 0) {
        for (i64 i = 0; i < n; i++) {
            i64 row = best[i].job;
            for (i64 k = 0; k < w->slots; k++) {
                i64 there = c->residents[row * c->slots + k];
                if (!leaves[row * MAX_SLOTS + k] || there < 0 || s->mark[there]) continue;
                s->mark[there] = 1;
                victims[found++] = there;
            }
        }
        unmark(w->r, victims, found);
    }
    release(s, m);
    return found;
}

/* As `_replace_one`: return whether `job`, of one GPU, got a place, and whose. */
static int replace_one(Run *r, i64 job, i64 at, const Queue *q, i64 *victim) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    Mark m = mark_of(s);
    i64 *victims = TAKE(s, i64, r->active_count), n = 0, row = -1;
    double bound = c->rate[job] / c->preempt_factor;
    refresh(r);
    for (i64 i = 0; i < r->active_count; i++) {
        i64 one = r->active[i];
        if (!s->may_stop[one] || !(c->rate[one] <= bound)) continue;
        if (c->size[one] > 1 && !repays(q, at, c->size[one], value_of(c, one), NAN)) continue;
        victims[n++] = one;
    }
    sort_by_value(r, victims, n);
    int found = n > 0 && in_place_of(r, job, victims, n, victim, &row);
    release(s, m);
    if (!found) return 0;
    stop(r, *victim, STOP);
    start(r, job, &row, 1);
    return 1;
}

/* As `_replace_gang`: write those preempted to `gone`, return how many; -1 where it does not pay. */
static i64 replace_gang(Run *r, i64 job, i64 at, i64 *victims, i64 count, const Queue *q, i64 *gone) {
    Scratch *s = r->s;
    if (count == 0) return -1;
    Mark m = mark_of(s);
    i64 *place = TAKE(s, i64, r->c->wanted[job]), left = -1;
    for (i64 i = 0; i < count; i++) s->gone[victims[i]] = 1;
    i64 found = best_without(r, job, place);
    for (i64 i = 0; i < count; i++) s->gone[victims[i]] = 0;
    if (found) {
        sort_by_value(r, victims, count);
        left = replace(r, job, at, victims, count, place, found, q, gone);
    }
    release(s, m);
    return left;
}

/* As `replace_some`; `Scratch.may_stop` says who may be preempted and is kept up to date. */
static i64 replace_some(Run *r, const i64 *waiting, i64 count, i64 *new) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 started = 0, tried = 0, refused_count = 0;
    double least = INFINITY;
    int any = 0;
    for (i64 i = 0; i < r->active_count; i++) {
        i64 job = r->active[i];
        if (!s->may_stop[job]) continue;
        any = 1;
        if (c->rate[job] < least) least = c->rate[job];
    }
    if (!any || count == 0) return 0;
    Queue q = {r, waiting, count, TAKE(s, u8, count)};
    memset(q.waits, 1, (size_t)count);
    i64 *refused = TAKE(s, i64, c->demands_tried + 1), *gone = TAKE(s, i64, r->active_count);
    i64 *victims = TAKE(s, i64, r->active_count);
    Swaps w;
    int known = 0;
    Mark m = mark_of(s);
    for (i64 at = 0; at < count; at++) {
        i64 job = waiting[at], left = -1;
        if (c->wanted[job] == 1 && !(c->rate[job] >= c->preempt_factor * least)) continue;
        int is_refused = 0;
        for (i64 i = 0; i < refused_count && !is_refused; i++) {
            is_refused = refused[i] == c->demand[job];
        }
        if (is_refused) continue;
        if (refused_count > c->demands_tried || !has_room(r)) break;
        if (c->wanted[job] == 1) {
            if (replace_one(r, job, at, &q, gone)) left = 1;
        } else {
            if (!known) {
                release(s, m);
                swaps_of(r, &w);
                known = 1;
            }
            if (tried < TRIALS && swap_pays(&w, job)) {
                tried++;
                i64 n = swap_victims(&w, job, victims);
                left = replace_gang(r, job, at, victims, n, &q, gone);
            }
        }
        if (left < 0) {
            refused[refused_count++] = c->demand[job];
            continue;
        }
        new[started++] = job;
        q.waits[at] = 0;
        for (i64 i = 0; i < left; i++) s->may_stop[gone[i]] = 0;
        known = 0;
    }
    return started;
}

/* As `_fewest`: how many of `victims`, the first ones, must leave until `job` fits; 0 for never. */
static i64 fewest_victims(Run *r, i64 job, const i64 *victims, i64 count, i64 *place) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 wanted = c->wanted[job], free_rows = 0, held = 0, low = 0;
    for (i64 row = 0; row < c->gpus; row++) free_rows += c->count[row] < most_jobs(c, row);
    while (low < count && held + c->size[victims[low]] < wanted - free_rows) {
        held += c->size[victims[low++]];
    }
    low++;
    i64 high = wanted + SPARE + 1;
    if (high < low) high = low;
    if (high > count) high = count;
    if (low > high) return 0;
    i64 tried = low, step = 1, marked = 0, found = 0;
    Mark m = mark_of(s);
    i64 *there = TAKE(s, i64, wanted);
    int places = 0;
    for (;;) {
        for (; marked < tried; marked++) s->gone[victims[marked]] = 1;
        places = best_without(r, job, there) > 0;
        if (places || tried == high) break;
        low = tried + 1;
        tried = tried + step < high ? tried + step : high;
        step++;
    }
    if (places) {
        memcpy(place, there, (size_t)wanted * sizeof *place);
        found = high = tried;
        while (low < high) {
            i64 middle = (low + high) / 2;
            for (i64 i = 0; i < marked; i++) s->gone[victims[i]] = i < middle;
            if (best_without(r, job, there) > 0) {
                memcpy(place, there, (size_t)wanted * sizeof *place);
                found = high = middle;
            } else {
                low = middle + 1;
            }
        }
    }
    for (i64 i = 0; i < marked; i++) s->gone[victims[i]] = 0;
    release(s, m);
    return found;
}

/* As `take_turns`; return how many of `turns` were started. */
static i64 take_turns(Run *r, const i64 *turns, i64 count) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 started = 0;
    for (i64 i = 0; i < count; i++) s->may_stop[turns[i]] = 0;
    for (i64 i = 0; i < count; i++) {
        i64 job = turns[i], n = 0;
        if (c->on_gpus[job] || !has_room(r)) continue;
        Mark m = mark_of(s);
        i64 *victims = TAKE(s, i64, r->active_count), *gone = TAKE(s, i64, r->active_count);
        i64 *place = TAKE(s, i64, c->wanted[job]);
        for (i64 k = 0; k < r->active_count; k++) {
            if (s->may_stop[r->active[k]]) victims[n++] = r->active[k];
        }
        sort_by_value(r, victims, n);
        i64 off = fewest_victims(r, job, victims, n, place);
        if (off > 0) {
            replace(r, job, -1, victims, off, place, c->wanted[job], NULL, gone);
            started++;
            for (i64 k = 0; k < r->active_count; k++) {
                if (!c->on_gpus[r->active[k]]) s->may_stop[r->active[k]] = 0;
            }
        }
        release(s, m);
    }
    return started;
}

/* --- jobs that their neighbours slow down too much: dispatch/too_slow.py ------------------------ */

static int is_slow(const Cycle *c, i64 job) {
    return c->predicted_speed[job] / spread_speed(c, job) < c->min_speed - ROUNDING;
}

/* As `preempt_too_slow`: mark the stopped jobs; write them to `stopped` and return how many. */
static i64 preempt_too_slow(Run *r, i64 *stopped) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 n = 0, count = 0;
    Mark m = mark_of(s);
    Keyed *slow = TAKE(s, Keyed, r->active_count);
    refresh(r);
    for (i64 i = 0; i < r->active_count; i++) {
        i64 job = r->active[i];
        int shares = 0;
        if (!s->may_stop[job] || !c->on_gpus[job]) continue;
        for (i64 k = 0; k < s->rows_count[job] && !shares; k++) {
            shares = c->count[s->rows_of[job][k]] > 1;
        }
        if (!shares || !is_slow(c, job)) continue;
        slow[n].key = c->rate[job] * (double)c->size[job];
        slow[n++].job = job;
    }
    qsort(slow, (size_t)n, sizeof *slow, by_key);
    for (i64 i = 0; i < n; i++) {
        refresh(r);
        if (!is_slow(c, slow[i].job) || !has_room(r)) continue;
        stop(r, slow[i].job, STOP_TOO_SLOW);
        s->mark[slow[i].job] = 1;
        stopped[count++] = slow[i].job;
    }
    release(s, m);
    return count;
}

/* --- running jobs move where that repays the move: dispatch/move.py ------------------------------ */

/* As `Valuation.best_move`: write the rows and return how many; `gain` is what all yield more. */
static i64 best_move(Run *r, i64 job, i64 *chosen, double *gain) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    const i64 *own = s->rows_of[job];
    i64 count = s->rows_count[job], wanted = c->wanted[job], partners;
    Mark m = mark_of(s);
    refresh(r);
    double total = -value_of(c, job);
    double *loss = TAKE(s, double, count);
    for (i64 i = 0; i < count; i++) loss[i] = 0;
    i64 *beside = with_partners(r, job, &partners);
    for (i64 i = 1; i < partners; i++) {
        i64 partner = beside[i];
        double alone = 1 / (1 + worst_slowdown(r, partner, job));
        double faster = alone * spread_speed(c, partner) - c->predicted_speed[partner];
        double lost = c->rate[partner] * faster * (double)c->size[partner];
        total += lost;
        if (count < 2 || !(lost > 0)) continue;
        i64 shared = c->size[partner] < wanted ? c->size[partner] : wanted;
        for (i64 k = 0; k < count; k++) {
            for (i64 slot = 0; slot < c->slots; slot++) {
                if (c->residents[own[k] * c->slots + slot] == partner) {
                    loss[k] += lost / (double)shared;
                    break;
                }
            }
        }
    }
    Candidate *a = TAKE(s, Candidate, c->gpus + count);
    u8 *is_own = TAKE(s, u8, c->gpus);
    memset(is_own, 0, (size_t)c->gpus);
    for (i64 i = 0; i < count; i++) is_own[own[i]] = 1;
    i64 n = 0, found = 0;
    double most = 0;
    for (i64 row = 0; row < c->gpus; row++) {
        if (is_own[row] || c->count[row] >= most_jobs(c, row)) continue;
        Place p;
        place_of(c, row, &p);
        Offer o = offer_of(c, job, &p);
        double there = gain_of(c, job, &o);
        if (there == -INFINITY) continue;
        if (wanted == 1 && there > most) {
            most = there;
            chosen[0] = row;
            found = 1;
        }
        Candidate one = {row, o.speed, o.loss};
        a[n++] = one;
    }
    if (wanted > 1) {
        for (i64 i = 0; i < count; i++) {
            Candidate one = {own[i], 1 / (1 + slowdown_at(c, job, own[i], -1)), loss[i]};
            a[n++] = one;
        }
        found = best_place(r, job, a, n, chosen, &most);
    }
    release(s, m);
    *gain = total + most;
    return found;
}

/* As `_gain` of move.py: by trial, so exactly. */
static double move_gain(Run *r, i64 job, const i64 *rows, i64 count, double estimate) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    Mark m = mark_of(s);
    i64 partners, n;
    i64 *beside = with_partners(r, job, &partners);
    i64 *concerned = TAKE(s, i64, partners + count * c->slots);
    memcpy(concerned, beside, (size_t)partners * sizeof *concerned);
    for (i64 i = 0; i < partners; i++) s->mark[concerned[i]] = 1;
    int meets = 0; /* one of the partners there */
    for (i64 k = 0; count == 1 && k < c->slots; k++) {
        i64 there = c->residents[rows[0] * c->slots + k];
        meets |= there >= 0 && there != job && s->mark[there];
    }
    n = add_residents(r, rows, count, concerned, partners);
    unmark(r, concerned, n);
    if (count == 1 && !meets) {
        release(s, m);
        return estimate;
    }
    qsort(concerned, (size_t)n, sizeof *concerned, by_number);
    refresh(r);
    double before = 0, after = 0;
    for (i64 i = 0; i < n; i++) before += value_of(c, concerned[i]);
    u8 *changed = TAKE(s, u8, c->gpus); /* a trial changes nothing */
    memcpy(changed, c->changed, (size_t)c->gpus);
    Aside aside;
    set_aside(r, job, &aside);
    place_job(r, job, rows, count);
    refresh(r);
    for (i64 i = 0; i < n; i++) after += value_of(c, concerned[i]);
    remove_job(r, job);
    put_back(r, &aside);
    memcpy(c->changed, changed, (size_t)c->gpus);
    release(s, m);
    return after - before;
}

/* As `improve`; `changed` is (gpus,). */
static void improve(Run *r, const u8 *changed) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    int open = 0, open_changed = 0;
    for (i64 row = 0; row < c->gpus; row++) {
        if (c->count[row] >= most_jobs(c, row)) continue;
        open = 1;
        open_changed |= changed[row];
    }
    if (!open) return;
    Mark m = mark_of(s);
    Keyed *slow = TAKE(s, Keyed, r->active_count);
    i64 n = 0;
    refresh(r);
    for (i64 i = 0; i < r->active_count; i++) {
        i64 job = r->active[i];
        if (!s->may_stop[job] || !(c->predicted_speed[job] < c->move_below_speed)) continue;
        int concerned = open_changed;
        for (i64 k = 0; k < s->rows_count[job] && !concerned; k++) {
            concerned = changed[s->rows_of[job][k]];
        }
        if (!concerned) continue;
        slow[n].key = c->predicted_speed[job];
        slow[n++].job = job;
    }
    qsort(slow, (size_t)n, sizeof *slow, by_key);
    if (n > TRIES) n = TRIES;
    double least[TRIES];
    for (i64 i = 0; i < n; i++) {
        i64 job = slow[i].job;
        double size = (double)c->size[job];
        double gained = c->running[job] ? size * (c->now_s - c->since_s[job]) : 0;
        double horizon_s = (c->attained_at_since[job] + gained) / size + HORIZON_S;
        least[i] = c->move_cost_s * c->rate[job] * size / horizon_s;
    }
    for (i64 i = 0; i < n; i++) {
        i64 job = slow[i].job;
        double gain;
        i64 *place = TAKE(s, i64, c->wanted[job]);
        i64 count = best_move(r, job, place, &gain);
        if (count == 0 || gain <= least[i] || !has_room(r)) continue;
        if (move_gain(r, job, place, count, gain) > least[i]) {
            stop(r, job, STOP);
            start(r, job, place, count);
        }
    }
    release(s, m);
}

/* --- what a second of service is worth: equations/worth.py -------------------------------------- */

/* Return the last of `bounds` (BINS + 1,) that is at most `value`. */
static i64 bin_of(const double *bounds, double value) {
    i64 low = 0, high = BINS;
    while (low < high) {
        i64 middle = (low + high + 1) / 2;
        if (bounds[middle] <= value) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* As `completion_rate`: write the index of each ranked job that ran for `run_s` to `index`. */
static void completion_rate(Run *r, const double *run_s, double *index) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 n = c->ranked_count, largest = 0;
    Mark m = mark_of(s);
    double longest_s = 0;
    i64 *own = TAKE(s, i64, n);
    for (i64 i = 0; i < n; i++) {
        i64 *last = &s->bin[c->ranked[i]]; /* most jobs are in the bin in which they were */
        if (!(c->bounds_s[*last] <= run_s[i] && run_s[i] < c->bounds_s[*last + 1])) {
            *last = bin_of(c->bounds_s, run_s[i]);
            if (*last > BINS - 1) *last = BINS - 1;
        }
        own[i] = *last;
        if (run_s[i] > longest_s) longest_s = run_s[i];
        if (c->size[c->ranked[i]] > largest) largest = c->size[c->ranked[i]];
    }
    /* The different numbers of GPUs, ascending. */
    i64 *column = TAKE(s, i64, largest + 1), *gpus = TAKE(s, i64, largest + 1), sizes = 0;
    memset(column, 0, (size_t)(largest + 1) * sizeof *column);
    for (i64 i = 0; i < n; i++) column[c->size[c->ranked[i]]] = 1;
    for (i64 g = 0; g <= largest; g++) {
        if (!column[g]) continue;
        gpus[sizes] = g;
        column[g] = sizes++;
    }
    i64 oldest = bin_of(c->bounds_s, longest_s), count;
    if (c->bounds_s[oldest] < longest_s) oldest++;
    double *hazard = TAKE(s, double, BINS * sizes);
    if (!c->learns) {
        count = oldest + AHEAD < BINS ? oldest + AHEAD : BINS;
        for (i64 b = 0; b < count; b++) {
            for (i64 k = 0; k < sizes; k++) hazard[b * sizes + k] = c->tail[b];
        }
    } else {
        i64 seen = -1, had = c->history_sizes;
        double *going_s = TAKE(s, double, BINS * sizes);
        i64 *there = TAKE(s, i64, BINS * sizes);
        memset(there, 0, (size_t)(BINS * sizes) * sizeof *there);
        for (i64 k = 0; k < BINS * sizes; k++) going_s[k] = 0;
        for (i64 i = 0; i < n; i++) {
            i64 b = own[i], at = b * sizes + column[c->size[c->ranked[i]]];
            double last_s = run_s[i] - c->bounds_s[b];
            there[at]++;
            going_s[at] += last_s < c->width_s[b] ? last_s : c->width_s[b];
        }
        for (i64 k = 0; k < sizes; k++) {
            i64 longer = 0;
            for (i64 b = BINS - 1; b >= 0; b--) {
                going_s[b * sizes + k] += (double)longer * c->width_s[b];
                longer += there[b * sizes + k];
            }
        }
        i64 *known = TAKE(s, i64, sizes); /* column of the history, -1 for none */
        for (i64 k = 0, h = 0; k < sizes; k++) {
            while (h < had && c->history_gpus[h] < gpus[k]) h++;
            known[k] = h < had && c->history_gpus[h] == gpus[k] ? h : -1;
        }
        double log_ratio = log(RATIO);
        for (i64 b = 0; b < BINS; b++) {
            double ended = 0, exposure_s = 0, going = 0, width_s = c->width_s[b];
            for (i64 h = 0; h < had; h++) {
                ended += c->history_ended[b * had + h];
                exposure_s += c->history_exposure_s[b * had + h];
                if (c->history_exposure_s[b * had + h] != 0) seen = b;
            }
            for (i64 k = 0; k < sizes; k++) going += going_s[b * sizes + k];
            double of_all = (ended + c->prior_jobs * log_ratio) /
                            (exposure_s + going + c->prior_jobs * width_s);
            double prior_s = c->size_prior_jobs * width_s;
            for (i64 k = 0; k < sizes; k++) {
                double events = 0, served_s = going_s[b * sizes + k];
                if (known[k] >= 0) {
                    events = c->history_ended[b * had + known[k]];
                    served_s += c->history_exposure_s[b * had + known[k]];
                }
                hazard[b * sizes + k] = (events + prior_s * of_all) / (served_s + prior_s);
            }
        }
        count = oldest > seen + 1 ? oldest : seen + 1;
        count = count + AHEAD < BINS ? count + AHEAD : BINS;
        for (i64 k = 0; k < sizes; k++) { /* as `_with_novel` */
            double passed = 0, of_novel = c->novel;
            for (i64 b = 0; b < count; b++) {
                double h = hazard[b * sizes + k], longer = exp(-passed);
                double part = of_novel / (of_novel + (1 - c->novel) * longer);
                passed += h * c->width_s[b];
                of_novel /= RATIO;
                hazard[b * sizes + k] = part * c->tail[b] + (1 - part) * h;
            }
        }
    }
    /* As `_index`: for each bin and size, what lies in the whole bins ahead. */
    double *ends = TAKE(s, double, count * sizes);
    for (i64 b = 0; b < count; b++) {
        for (i64 k = 0; k < sizes; k++) {
            ends[b * sizes + k] = -expm1(-hazard[b * sizes + k] * c->width_s[b]);
        }
    }
    i64 kinds = count * sizes;
    i64 *first = TAKE(s, i64, kinds), *more = TAKE(s, i64, kinds);
    double **ended_at = TAKE(s, double *, kinds), **spent_at = TAKE(s, double *, kinds);
    for (i64 kind = 0; kind < kinds; kind++) first[kind] = -1;
    for (i64 i = 0; i < n; i++) {
        i64 k = column[c->size[c->ranked[i]]], kind = own[i] * sizes + k;
        double now = hazard[kind];
        if (first[kind] < 0) {
            double *ended = ended_at[kind] = TAKE(s, double, count);
            double *spent_s = spent_at[kind] = TAKE(s, double, count);
            double survived = 1, gone = -ends[kind], at_end = -INFINITY, at_start = -INFINITY;
            i64 best_start = 0, best_end = 0;
            ended[own[i]] = spent_s[own[i]] = 0;
            for (i64 b = own[i]; b < count; b++) {
                double rate = now;
                if (b > own[i]) {
                    double part = survived * ends[b * sizes + k];
                    ended[b] = ended[b - 1] + part;
                    spent_s[b] = spent_s[b - 1] + part / hazard[b * sizes + k];
                    survived *= 1 - ends[b * sizes + k];
                    rate = ended[b] / spent_s[b];
                }
                if (rate > at_end) {
                    at_end = rate;
                    best_end = b;
                }
                double from_start = (ended[b] * (1 + gone) - gone) /
                                    (spent_s[b] * (1 + gone) - gone / now);
                if (from_start > at_start) {
                    at_start = from_start;
                    best_start = b;
                }
            }
            first[kind] = best_end;
            more[kind] = best_start > best_end ? best_start - best_end : 0;
        }
        double rest = expm1(-now * (c->bounds_s[own[i] + 1] - run_s[i])), before_s = rest / now;
        double best = 0;
        for (i64 b = first[kind]; b <= first[kind] + more[kind]; b++) {
            double rate = (ended_at[kind][b] * (1 + rest) - rest) /
                          (spent_at[kind][b] * (1 + rest) - before_s);
            if (b == own[i]) rate = now;
            if (rate > best) best = rate;
        }
        index[i] = best;
    }
    release(s, m);
}

/* --- the cycle: dispatch/share.py ---------------------------------------------------------------- */

typedef struct {
    double arrived_s;
    i64 job, at;
} Arrived;

static int by_arrival(const void *a, const void *b) {
    const Arrived *x = a, *y = b;
    if (x->arrived_s != y->arrived_s) return x->arrived_s < y->arrived_s ? -1 : 1;
    return (x->job > y->job) - (x->job < y->job);
}

/* Sort by arrival, by four times eight bits of the row where rows are in the order of arrival, as
 * they are in most tables. */
static void sort_by_arrival(Scratch *s, Arrived *a, i64 count) {
    Mark m = mark_of(s);
    Arrived *from = a, *to = TAKE(s, Arrived, count);
    for (int shift = 0; shift < 32 && (s->jobs - 1) >> shift > 0; shift += 8) {
        i64 at[257] = {0};
        for (i64 i = 0; i < count; i++) at[((from[i].job >> shift) & 255) + 1]++;
        for (int k = 0; k < 256; k++) at[k + 1] += at[k];
        for (i64 i = 0; i < count; i++) to[at[(from[i].job >> shift) & 255]++] = from[i];
        Arrived *swap = from;
        from = to;
        to = swap;
    }
    if (from != a) memcpy(a, from, (size_t)count * sizeof *a);
    release(s, m);
    for (i64 i = 1; i < count; i++) {
        if (a[i].arrived_s >= a[i - 1].arrived_s) continue;
        qsort(a, (size_t)count, sizeof *a, by_arrival);
        return;
    }
}

/* As `Share._turns`: write the jobs whose turn it is to `turns` and return how many. */
static i64 turns_of(Run *r, const double *run_s, i64 *turns) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 n = c->ranked_count, concerned = 0, found = 0;
    if (isnan(c->turn_share) || isnan(c->preempt_factor)) return 0;
    double least_s = 2 * TURN_COSTS * (isnan(c->move_cost_s) ? 0 : c->move_cost_s);
    int any = 0;
    Mark m = mark_of(s);
    Arrived *order = TAKE(s, Arrived, n);
    for (i64 i = 0; i < n; i++) {
        i64 job = c->ranked[i];
        double part_s = c->turn_share * (c->now_s - c->arrived_s[job]);
        int behind = run_s[i] < part_s && part_s >= least_s;
        any |= behind;
        if (!behind && c->running[job]) continue;
        order[concerned].arrived_s = c->arrived_s[job];
        order[concerned].job = job;
        order[concerned++].at = i;
    }
    if (any) {
        sort_by_arrival(s, order, concerned);
        i64 wanted = 0, room = -1;
        for (i64 i = 0; i < concerned; i++) {
            i64 job = order[i].job, size = c->size[job];
            if (!c->running[job]) wanted += size;
            double of = (double)(wanted > size ? wanted : size), part = (double)c->gpus / of;
            double owed_s = c->turn_share * (part < 1 ? part : 1) * (c->now_s - c->arrived_s[job]);
            double due_s = (c->running[job] ? 1.0 : 0.5) * owed_s;
            if (!(run_s[order[i].at] < due_s && owed_s >= least_s)) continue;
            if (room < 0) {
                room = (i64)(c->turn_share * (double)c->gpus);
                if (room < size) room = size;
            }
            if (size > room) continue;
            room -= size;
            turns[found++] = job;
        }
    }
    release(s, m);
    return found;
}

/* Sort jobs by rate, highest first; of equals the earlier ones, as numpy's stable argsort does. */
static void sort_by_rate(Run *r, i64 *jobs, u8 *fresh, i64 count) {
    Mark m = mark_of(r->s);
    Candidate *a = TAKE(r->s, Candidate, count);
    i64 *old = TAKE(r->s, i64, count);
    u8 *was = TAKE(r->s, u8, count);
    for (i64 i = 0; i < count; i++) {
        a[i].row = i;
        a[i].speed = 0;
        a[i].loss = -r->c->rate[jobs[i]];
    }
    memcpy(old, jobs, (size_t)count * sizeof *old);
    memcpy(was, fresh, (size_t)count);
    sort_cheapest(r->s, a, count);
    for (i64 i = 0; i < count; i++) {
        jobs[i] = old[a[i].row];
        fresh[i] = was[a[i].row];
    }
    release(r->s, m);
}

/* Set up what is known of jobs in the order and on GPUs. */
static void begin(Run *r) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    r->active = TAKE(s, i64, c->ranked_count + c->gpus * c->slots);
    r->active_count = 0;
    for (i64 i = 0; i < c->ranked_count; i++) {
        i64 job = c->ranked[i];
        if (s->mark[job]) continue;
        s->mark[job] = 1;
        r->active[r->active_count++] = job;
    }
    for (i64 row = 0; row < c->gpus; row++) {
        for (i64 k = row * c->slots; k < (row + 1) * c->slots; k++) {
            i64 there = c->residents[k];
            if (there < 0 || s->mark[there]) continue;
            s->mark[there] = 1;
            r->active[r->active_count++] = there;
        }
    }
    unmark(r, r->active, r->active_count);
    for (i64 i = 0; i < r->active_count; i++) {
        i64 job = r->active[i];
        s->staleness[job] = FRESH;
        s->gone[job] = 0;
        s->rows_count[job] = c->on_gpus[job] ? c->held[job] : 0;
        s->rows_of[job] = c->pool + c->pool_at[job];
        s->may_stop[job] = c->on_gpus[job] && c->checkpointable[job];
    }
    s->stale_count = 0;
    for (i64 i = 0; i < c->stale_count; i++) make_stale(r, c->stale[i]);
    for (i64 i = 0; i < c->pinned_count; i++) s->may_stop[c->pinned[i]] = 0;
}

static int any_of(const u8 *a, i64 count) {
    return memchr(a, 1, (size_t)count) != NULL;
}

static void add_to(u8 *a, const u8 *b, i64 count) {
    for (i64 i = 0; i < count; i++) a[i] |= b[i];
}

/* As `Share.__call__`. The columns of the board are changed in place. */
static int cycle(Run *r) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 n = c->ranked_count;
    int all_run = 1, movable = 0;
    if (c->slots > MAX_SLOTS) return UNSUPPORTED;
    for (i64 row = 0; row < c->gpus; row++) {
        if (c->count[row] > c->slots) return UNSUPPORTED;
        movable |= c->count[row] > 1;
    }
    for (i64 i = 0; i < n; i++) {
        i64 job = c->ranked[i];
        all_run &= c->running[job];
        movable |= c->locality && c->running[job] && c->spread_speed[job] < 1;
    }
    if (all_run && !(movable && any_of(c->changed, c->gpus))) return NOTHING_NEW;
    double *run_s = TAKE(s, double, n), *index = TAKE(s, double, n);
    for (i64 i = 0; i < n; i++) {
        i64 job = c->ranked[i];
        double size = (double)c->size[job];
        double gained = c->running[job] ? size * (c->now_s - c->since_s[job]) : 0;
        run_s[i] = (c->service_at_since[job] + gained) / size;
        if (!(run_s[i] > 0)) run_s[i] = 0;
    }
    completion_rate(r, run_s, index);
    u8 *moved = TAKE(s, u8, n);
    for (i64 i = 0; i < n; i++) {
        i64 job = c->ranked[i];
        double age_s = c->now_s - c->arrived_s[job], rate = index[i];
        double base = 1 + (age_s > 0 ? age_s : 0) * rate;
        rate *= c->aging == 0.5 ? sqrt(base) : pow(base, c->aging);
        rate /= (double)c->size[job];
        c->rate[job] = rate;
        double seen = c->seen_rate[job];
        moved[i] = !(fabs(rate - seen) <= NOTABLE * seen);
        if (moved[i]) c->seen_rate[job] = rate;
    }
    i64 *turns = TAKE(s, i64, n), turn_count = turns_of(r, run_s, turns);
    u8 *changed = TAKE(s, u8, c->gpus), *came_or_went = TAKE(s, u8, c->gpus);
    memcpy(changed, c->changed, (size_t)c->gpus);
    memcpy(came_or_went, c->changed, (size_t)c->gpus);
    memset(c->changed, 0, (size_t)c->gpus);
    i64 *waiting = TAKE(s, i64, n), waits = 0;
    u8 *fresh = TAKE(s, u8, n);
    int any_fresh = 0, turn_waits = 0;
    for (i64 i = 0; i < n; i++) {
        i64 job = c->ranked[i];
        if (!c->running[job]) {
            waiting[waits] = job;
            fresh[waits++] = moved[i];
            any_fresh |= moved[i];
            continue;
        }
        for (i64 k = 0; moved[i] && c->on_gpus[job] && k < c->held[job]; k++) {
            changed[c->pool[c->pool_at[job] + k]] = 1;
        }
    }
    for (i64 i = 0; i < turn_count; i++) turn_waits |= !c->on_gpus[turns[i]];
    if (!any_fresh && !turn_waits && !any_of(changed, c->gpus)) return NOTHING_NEW;
    begin(r);
    refresh(r);
    int preempts = !isnan(c->preempt_factor);
    if (c->min_speed > 0 && preempts) {
        i64 *stopped = TAKE(s, i64, r->active_count), count = preempt_too_slow(r, stopped);
        if (count > 0) {
            waits = 0; /* in the order, with those that were stopped */
            for (i64 i = 0; i < n; i++) {
                i64 job = c->ranked[i];
                if (c->running[job] && !s->mark[job]) continue;
                waiting[waits] = job;
                fresh[waits++] = s->mark[job] || moved[i];
            }
            unmark(r, stopped, count);
        }
        add_to(changed, c->changed, c->gpus);
    }
    sort_by_rate(r, waiting, fresh, waits);
    int room_changed = 0;
    for (i64 row = 0; row < c->gpus && !room_changed; row++) {
        room_changed = changed[row] && c->count[row] < most_jobs(c, row);
    }
    i64 *tried = TAKE(s, i64, waits), tries = 0;
    for (i64 i = 0; i < waits; i++) {
        if (room_changed || fresh[i]) tried[tries++] = waiting[i];
    }
    u8 *started = TAKE(s, u8, waits);
    fill(r, tried, tries, started);
    i64 *left = TAKE(s, i64, waits), *new = TAKE(s, i64, waits), lefts = 0, news = 0;
    for (i64 i = 0; i < r->active_count; i++) {
        if (!c->on_gpus[r->active[i]]) s->may_stop[r->active[i]] = 0;
    }
    for (i64 i = 0, k = 0; i < waits; i++) {
        int starts = room_changed || fresh[i] ? started[k++] : 0;
        if (starts) s->may_stop[waiting[i]] = 0;
        if (!starts) {
            fresh[lefts] = fresh[i];
            left[lefts++] = waiting[i];
        }
    }
    add_to(changed, c->changed, c->gpus);
    add_to(came_or_went, c->changed, c->gpus);
    memset(c->changed, 0, (size_t)c->gpus);
    if (preempts) {
        i64 untried = 0;
        for (i64 row = 0; row < c->gpus; row++) {
            c->untried[row] |= changed[row];
            untried += c->untried[row];
        }
        if ((double)untried < pow((double)c->gpus / EACH, 1.5)) {
            i64 count = 0;
            for (i64 i = 0; i < lefts; i++) {
                if (fresh[i]) left[count++] = left[i];
            }
            lefts = count;
        } else {
            memset(c->untried, 0, (size_t)c->gpus);
        }
        i64 served = take_turns(r, turns, turn_count), count = 0;
        for (i64 i = 0; i < lefts; i++) {
            if (!c->on_gpus[left[i]]) left[count++] = left[i];
        }
        news = replace_some(r, left, count, new);
        for (i64 i = 0; i < r->active_count; i++) {
            if (!c->on_gpus[r->active[i]]) s->may_stop[r->active[i]] = 0;
        }
        for (i64 i = 0; i < news; i++) s->may_stop[new[i]] = 0;
        if (served || news) {
            tries = 0;
            for (i64 i = 0; i < waits; i++) {
                if (!c->on_gpus[waiting[i]]) tried[tries++] = waiting[i];
            }
            fill(r, tried, tries, started);
            for (i64 i = 0; i < tries; i++) {
                if (started[i]) s->may_stop[tried[i]] = 0;
            }
        }
    }
    if (!isnan(c->move_cost_s)) {
        add_to(came_or_went, c->changed, c->gpus);
        improve(r, came_or_went);
    }
    refresh(r);
    return DONE;
}

/* Act on all jobs of the order, as `Share.__call__`. DONE: no speed is stale any more; NOTHING_NEW
 * and UNSUPPORTED: nothing is changed but what was seen. */
int tandem_share(Cycle *c, Scratch *s) {
    Run r = {c, s, NULL, 0};
    if (setjmp(s->out_of_memory)) return NO_MEMORY;
    s->at = s->first;
    if (s->at != NULL) s->at->used = 0;
    c->actions_used = 0;
    memset(c->touched, 0, (size_t)c->gpus);
    return cycle(&r);
}

/* --- the front of an order: dispatch/preempt.py ------------------------------------------------- */

/* Take jobs in order while they fit, as `fits_in_order`, and skip those that do not. `occupied` jobs
 * run. Write those that run and are skipped from the front of `found` (ranked,), those that are taken
 * and wait from its end, backwards; return how many the first are, and the others in `starts`. */
i64 tandem_front(const i64 *ranked, i64 count, const i64 *size, const u8 *running, i64 free_gpus,
                 i64 occupied, i64 *found, i64 *starts) {
    i64 stops = 0, last = count;
    for (i64 i = 0; i < count && (free_gpus > 0 || occupied > 0); i++) {
        i64 job = ranked[i];
        int fits = free_gpus > 0 && size[job] <= free_gpus;
        if (fits) free_gpus -= size[job];
        if (running[job]) {
            occupied--;
            if (!fits) found[stops++] = job;
        } else if (fits) {
            found[--last] = job;
        }
    }
    *starts = count - last;
    return stops;
}

i64 tandem_cycle_bytes(void) { return (i64)sizeof(Cycle); }

const char *tandem_source(void) { return TANDEM_SOURCE; }
