/* Running jobs move where that repays the move: dispatch/move.py. */
#ifndef TANDEM_MOVE_H
#define TANDEM_MOVE_H

#include "gangs.h"

enum { TRIES = 6 };                      /* as _TRIES */
static const double HORIZON_S = 300.0; /* as _HORIZON_S */

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
    i64 *group = with_partners(r, job, &partners);
    for (i64 i = 1; i < partners; i++) {
        i64 partner = group[i];
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
        Candidate one = {row, o.speed, o.loss, 0};
        a[n++] = one;
    }
    if (wanted > 1) {
        for (i64 i = 0; i < count; i++) {
            Candidate one = {own[i], 1 / (1 + slowdown_at(c, job, own[i], -1)), loss[i], 0};
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
    i64 *group = with_partners(r, job, &partners);
    i64 *concerned = TAKE(s, i64, partners + count * c->slots);
    memcpy(concerned, group, (size_t)partners * sizeof *concerned);
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

#endif
