/* Which residents waiting gangs would best replace: dispatch/swap.py. */
#ifndef TANDEM_SWAP_H
#define TANDEM_SWAP_H

#include "gangs.h"

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
            i64 shared = 0;
            for (i64 i = 0; i < s->rows_count[there]; i++) {
                shared += c->count[s->rows_of[there][i]] > 1;
            }
            if (shared == 0) continue;
            w->crowded[at] = shared;
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
        int stays = w->stays[at] || (there >= 0 && c->queue[there] < c->queue[gang]);
        leaving[k] = stays ? INFINITY : cost;
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
        double net = worth * speed_of[k] - factor * cost;
        if (!(net > gain)) continue;
        gain = net;
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

#endif
