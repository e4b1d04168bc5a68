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
#include "exchange.h"
#include "fill.h"
#include "move.h"
#include "too_slow.h"
#include "worth.h"

#ifndef TANDEM_SOURCE
#define TANDEM_SOURCE "unknown"
#endif

enum { DONE = 0, NOTHING_NEW = 1, UNSUPPORTED = -1, NO_MEMORY = -2 };
enum {
    EACH = 64,      /* as _EACH of dispatch/share.py */
    TURN_COSTS = 10 /* as _TURN_COSTS */
};
static const double NOTABLE = 0.3; /* as _NOTABLE */

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

/* Sort jobs by queue, then by rate, highest first; of equals the earlier ones, as numpy's stable
 * lexsort does. */
static void sort_in_order(Run *r, i64 *jobs, u8 *fresh, i64 count) {
    Mark m = mark_of(r->s);
    Candidate *a = TAKE(r->s, Candidate, count);
    i64 *old = TAKE(r->s, i64, count);
    u8 *was = TAKE(r->s, u8, count);
    for (i64 i = 0; i < count; i++) {
        a[i].row = i;
        a[i].speed = r->c->rate[jobs[i]];
        a[i].loss = (double)r->c->queue[jobs[i]];
        a[i].score = 0;
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
        double root = sqrt(base);
        rate *= c->aging == 0.75 ? root * sqrt(root) : c->aging == 0.5 ? root : pow(base, c->aging);
        double part = (double)c->size[job] / (double)(c->gpus > 0 ? c->gpus : 1);
        rate *= 1 + c->gang_weight * part * part;
        rate /= (double)c->size[job];
        c->rate[job] = rate;
        double seen = c->seen_rate[job];
        moved[i] = !(fabs(rate - seen) <= NOTABLE * seen) || c->queue[job] != c->seen_queue[job];
        if (moved[i]) {
            c->seen_rate[job] = rate;
            c->seen_queue[job] = c->queue[job];
        }
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
    sort_in_order(r, waiting, fresh, waits);
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

const char *tandem_cycle_fields(void) { return CYCLE_FIELDS(CYCLE_TEXT); }

const char *tandem_source(void) { return TANDEM_SOURCE; }
