/* What a worker of a job would do on a GPU: constraints, `Offers` of dispatch/valuation.py, and
 * equations/turns.py. */
#ifndef TANDEM_OFFERS_H
#define TANDEM_OFFERS_H

#include "board.h"

/* As `Interference`: whether one of those at `p`, or `job`, would be slowed down beyond the bound. */
static int interferes(const Cycle *c, i64 job, const Place *p) {
    if (!c->known[job]) return 0;
    const double *own = c->own + c->table[job] * c->classes;
    const double *caused = c->caused + c->table[job] * c->classes;
    double mine = 0;
    for (i64 k = 0; k < c->slots; k++) {
        mine += own[p->kind[k]];
        if (p->there[k] < 0) continue;
        if (!(p->slowdown[k] + caused[p->kind[k]] <= c->max_interference)) return 1;
    }
    return !(mine <= c->max_interference);
}

/* Whether the constraints allow one more worker of `job` at `p`. */
static int allows(const Cycle *c, i64 job, const Place *p) {
    i64 row = p->row;
    if (c->needs_healthy && !c->healthy[row]) return 0;
    if (c->needs_whole && c->sliced[row] && c->spans[job]) return 0;
    if (c->needs_fresh && !c->fresh[row] && p->count > 0) return 0;
    if (c->needs_shares && p->count >= (c->shares[row] < c->at_most ? c->shares[row] : c->at_most)) {
        return 0;
    }
    if (c->needs_exclusive && (c->never_shares[job] ? p->count > 0 : p->exclusive)) return 0;
    if (c->mask_of[job] >= 0 && !c->masks[c->mask_of[job] * c->nodes + c->node[row]]) return 0;
    if (c->limit_of[job] >= 0 &&
        c->place[row] >= c->limits[c->limit_of[job] * c->nodes + c->node[row]]) {
        return 0;
    }
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
    if (c->needs_memory && !(one_peak <= capacity) && !(capacity == 0 && c->never_shares[job])) return 0;
    if (c->max_collision_probability < INFINITY && (c->strict_collision || !(all_peaks <= capacity))) {
        double chance = c->peak_probability[job], none = p->none * (1 - chance);
        double collision = 1 - none - (p->one * (1 - chance) + p->none * chance);
        if (!((collision > 0 ? collision : 0) <= c->max_collision_probability)) return 0;
    }
    if (c->peaks_fit && p->count > 0) {
        int known = c->peaks_opportunistic && c->guarded[row] && p->measured && c->peaks_may_meet[job];
        if (!((known ? one_peak : all_peaks) <= capacity)) return 0;
    }
    if (c->max_utilisation < INFINITY && p->count > 0) {
        if (!(p->utilisation + c->utilisation[job] <= c->max_utilisation)) return 0;
    }
    return !(c->max_interference < INFINITY && p->count > 0 && interferes(c, job, p));
}

/* As scorers/horus_cost.py and sharing.py: what they say of one more worker of `job` on `row`. */
static double score_of(const Cycle *c, i64 job, i64 row) {
    double score = 0;
    if (c->horus_weight > 0) {
        double capacity = c->memory_capacity_gib[row] > 1e-9 ? c->memory_capacity_gib[row] : 1e-9;
        double all_peaks = c->memory_base_gib[row] + c->memory_peak_sum_gib[row] +
                           (c->base_gib[job] + c->extra_gib[job]);
        const double *curve = c->over_commit + 3 * row;
        double at_100 = curve[0] + curve[1] * 100 + curve[2] * 10000;
        double x = c->gpu_utilisation[row] + c->utilisation[job];
        double ratio = x > 100 ? curve[0] + curve[1] * x + curve[2] * x * x : 1 + (at_100 - 1) * x / 100;
        double cost = c->horus_memory_weight * (all_peaks / capacity) +
                      c->horus_utilisation_weight * ratio;
        score += 1 / (1 + cost) * c->horus_weight;
    }
    if (c->in_use_weight > 0 && c->count[row] > 0) score += c->in_use_weight;
    return score;
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
            if (slowdown == INFINITY) return o; /* next to it the job makes no progress */
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
    if (c->locality) o.speed *= slice_speed(c, job, p->row);
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

#endif
