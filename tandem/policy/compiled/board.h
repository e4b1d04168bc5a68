/* The board: who is where, and how fast, as in tandem/policy/board.py and cluster.py. */
#ifndef TANDEM_BOARD_H
#define TANDEM_BOARD_H

#include "scratch.h"

enum { START = 0, STOP = 1, STOP_TOO_SLOW = 2 };
enum { FRESH = 0, STALE = 1, LISTED = 2 };

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

/* As `slice_speed` of equations/slices.py; 1 on a whole GPU. */
static double slice_speed(const Cycle *c, i64 job, i64 row) {
    double busy = c->busy_share[job];
    return c->sliced[row] ? 1 / (1 - busy + busy / c->compute[row]) : 1.0;
}

/* As `Board._note_spread`. */
static void note_spread(Run *r, i64 job, const i64 *rows, i64 count) {
    Cycle *c = r->c;
    double slowdown = c->spread_slowdown[job];
    int spread = slowdown > 0 && count > 1 && count_nodes(r, rows, count) > fewest_nodes(c, job);
    c->spread_speed[job] = spread ? 1 / (1 + slowdown) : count == 1 ? slice_speed(c, job, rows[0]) : 1.0;
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
    if (!c->peaks_may_meet[job]) c->peaks_measured[row] = 0;
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
        c->resident_class[k] = EMPTY_SLOT;
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
            p->kind[k] = EMPTY_SLOT;
            continue;
        }
        double chance = c->peak_probability[job];
        p->base += c->base_gib[job];
        if (c->extra_gib[job] > p->extra) p->extra = c->extra_gib[job];
        p->peak_sum += c->extra_gib[job];
        p->utilisation += c->utilisation[job];
        if (!c->peaks_may_meet[job]) p->measured = 0;
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
        sum += own[there == job || (there == leaving && there >= 0) ? EMPTY_SLOT : c->resident_class[k]];
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

#endif
