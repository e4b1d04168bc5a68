/* Free shares go, queue by queue, to the waiting jobs that gain most: dispatch/fill.py. */
#ifndef TANDEM_FILL_H
#define TANDEM_FILL_H

#include "gangs.h"

static const double ROUNDED_UP = 1 + 1e-9; /* as _ROUNDED_UP */

typedef struct {
    Run *r;
    int scores;                            /* whether the profile has scorers */
    i64 heads, rows;                       /* heads: one job of each demand */
    i64 *job;                              /* (heads,) */
    i64 *row, *at;                         /* (rows,) of the board, and back: (gpus,), -1 elsewhere */
    double *gain, *speed, *loss, *slowed;  /* (heads, rows) */
    double *score;                         /* (heads, rows) where the head may and should be */
    u8 *allowed;                           /* (heads, rows) */
    double *present, *worth;               /* (rows,) */
    double *key;                           /* (heads,) what goes first */
    i64 *best_at;                          /* (heads,) of `row`, for jobs of one GPU; -1: nowhere */
    i64 *top;                              /* (heads,) likewise, where the job gains most */
    u8 *open, *rough, *dropped;            /* (heads,) gangs whose key is a bound; a rough one */
    i64 **place;                           /* (heads,) rows of a gang */
    i64 *place_count;
} Places;

/* Whether some head would move next to the residents of `row`, as far as predictions say. */
static int moves_at(const Places *o, i64 row) {
    const Cycle *c = o->r->c;
    if (c->count[row] == 0) return 1;
    for (i64 h = 0; h < o->heads; h++) {
        const double *own = c->own + c->table[o->job[h]] * c->classes;
        double slowdown = 0;
        for (i64 k = row * c->slots; k < (row + 1) * c->slots; k++) {
            slowdown += own[c->resident_class[k]];
        }
        if (slowdown < INFINITY) return 1;
    }
    return 0;
}

static void look_at(Places *o, i64 at) {
    Cycle *c = o->r->c;
    Place p;
    if (!moves_at(o, o->row[at])) {
        for (i64 h = 0; h < o->heads; h++) {
            o->gain[h * o->rows + at] = -INFINITY;
            o->allowed[h * o->rows + at] = 0;
        }
        return;
    }
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
        if (found.allowed && o->scores) o->score[k] = score_of(c, o->job[h], o->row[at]);
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
    const double *gain = o->gain + h * o->rows, *score = o->score + h * o->rows;
    i64 best = 0;
    for (i64 at = 1; at < o->rows; at++) {
        if (gain[at] > gain[best]) best = at;
    }
    int any = gain[best] > 0;
    o->top[h] = best;
    if (any && o->scores) { /* among places of equal worth */
        double least = (1 - o->r->c->equal_worth) * gain[best];
        best = -1;
        for (i64 at = 0; at < o->rows; at++) {
            if (!(gain[at] >= least)) continue;
            int ahead = best < 0 || score[at] > score[best] ||
                        (score[at] == score[best] && gain[at] > gain[best]);
            if (ahead) best = at;
        }
    }
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
            Candidate one = {o->row[at], o->speed[k], o->loss[k], o->scores ? o->score[k] : 0};
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

/* Return the head that goes first: of the first queue in which one gains, of equals the first job of
 * the board; -1: none gains. */
static i64 first_head(Places *o) {
    const i64 *queue = o->r->c->queue;
    for (;;) {
        double most = -INFINITY;
        i64 first = 0;
        for (i64 h = 0; h < o->heads; h++) {
            if (o->key[h] == -INFINITY) continue;
            i64 of = queue[o->job[h]];
            if (most == -INFINITY || of < first || (of == first && o->key[h] > most)) {
                most = o->key[h];
                first = of;
            }
        }
        if (most == -INFINITY) return -1;
        int undecided = 0;
        i64 best = -1;
        for (i64 h = 0; h < o->heads; h++) {
            if (o->key[h] != most || queue[o->job[h]] != first) continue;
            if (o->open[h]) {
                undecided = 1;
            } else if (best < 0 || o->job[h] < o->job[best]) {
                best = h;
            }
        }
        if (!undecided) return best;
        for (i64 h = 0; h < o->heads; h++) {
            if (!o->open[h] || o->key[h] != most || queue[o->job[h]] != first) continue;
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
            i64 there = o->best_at[h];
            double now = there >= 0 ? o->gain[h * o->rows + o->top[h]] : 0;
            int again = h == front || most > (o->scores ? 1 - c->equal_worth : 1) * now ||
                        (there >= 0 && (changed[there] || changed[o->top[h]]));
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
    o.scores = c->horus_weight > 0 || c->in_use_weight > 0;
    o.score = TAKE(s, double, o.scores ? all : 1);
    o.allowed = TAKE(s, u8, all);
    o.present = TAKE(s, double, o.rows);
    o.worth = TAKE(s, double, o.rows);
    o.key = TAKE(s, double, o.heads);
    o.best_at = TAKE(s, i64, o.heads);
    o.top = TAKE(s, i64, o.heads);
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

#endif
