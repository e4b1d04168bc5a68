/* Jobs that their neighbours slow down too much: dispatch/too_slow.py. */
#ifndef TANDEM_TOO_SLOW_H
#define TANDEM_TOO_SLOW_H

#include "board.h"

static const double ROUNDING = 1e-9; /* as _ROUNDING */

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

#endif
