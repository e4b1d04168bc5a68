/* What could be done without some running jobs: `Valuation` of dispatch/valuation.py. */
#ifndef TANDEM_TRIALS_H
#define TANDEM_TRIALS_H

#include "gangs.h"

/* What a job yields in place of a victim, on one of its GPUs. */
typedef struct {
    i64 victim, row;
    double net;
} InPlace;

static const double SAME = 1e-12; /* as _SAME */

/* As `Valuation.in_place_of`: whose place is best for `job`, of one GPU; 0 for no victim's. */
static int in_place_of(Run *r, i64 job, const i64 *victims, i64 count, i64 *victim, i64 *row) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    Mark m = mark_of(s);
    i64 rows = 0, offers = 0;
    for (i64 i = 0; i < count; i++) rows += s->rows_count[victims[i]];
    InPlace *found = TAKE(s, InPlace, rows);
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
            found[offers++] = (InPlace){leaves, p.row, net};
            if (net > most) most = net;
        }
    }
    for (i64 i = 0; i < offers; i++) {
        if (found[i].net < most - SAME * fabs(most)) continue;
        *victim = found[i].victim;
        *row = found[i].row;
        break;
    }
    release(s, m);
    return offers > 0;
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
    /* The former neighbours of a job that left run faster. */
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
        Candidate one = {row, o.speed, o.loss, 0};
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

#endif
