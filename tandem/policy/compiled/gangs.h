/* Where a gang goes: `Offers.best` of dispatch/valuation.py, and `whole_pods`. */
#ifndef TANDEM_GANGS_H
#define TANDEM_GANGS_H

#include "offers.h"

static int is_before(const Candidate *a, const Candidate *b) {
    if (a->loss != b->loss) return a->loss < b->loss;
    if (a->speed != b->speed) return a->speed > b->speed;
    if (a->score != b->score) return a->score > b->score;
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

#endif
