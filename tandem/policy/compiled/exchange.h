/* Running jobs make room for those worth far more: dispatch/exchange.py. */
#ifndef TANDEM_EXCHANGE_H
#define TANDEM_EXCHANGE_H

#include "swap.h"
#include "trials.h"

enum {
    TRIALS = 4, /* as _TRIALS */
    SPARE = 8   /* as _SPARE */
};

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
        if (!s->may_stop[one] || c->queue[one] < c->queue[job] || !(c->rate[one] <= bound)) continue;
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

#endif
