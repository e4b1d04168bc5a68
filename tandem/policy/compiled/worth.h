/* What a second of service is worth: equations/worth.py. */
#ifndef TANDEM_WORTH_H
#define TANDEM_WORTH_H

#include "board.h"

enum { AHEAD = 6 };               /* as _AHEAD */
static const double RATIO = 1.5; /* as _RATIO */

/* Return the last of `bounds` (BINS + 1,) that is at most `value`. */
static i64 bin_of(const double *bounds, double value) {
    i64 low = 0, high = BINS;
    while (low < high) {
        i64 middle = (low + high + 1) / 2;
        if (bounds[middle] <= value) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* As `completion_rate`: write the index of each ranked job that ran for `run_s` to `index`. */
static void completion_rate(Run *r, const double *run_s, double *index) {
    Cycle *c = r->c;
    Scratch *s = r->s;
    i64 n = c->ranked_count, largest = 0;
    Mark m = mark_of(s);
    double longest_s = 0;
    i64 *own = TAKE(s, i64, n);
    for (i64 i = 0; i < n; i++) {
        i64 *last = &s->bin[c->ranked[i]]; /* most jobs are in the bin in which they were */
        if (!(c->bounds_s[*last] <= run_s[i] && run_s[i] < c->bounds_s[*last + 1])) {
            *last = bin_of(c->bounds_s, run_s[i]);
            if (*last > BINS - 1) *last = BINS - 1;
        }
        own[i] = *last;
        if (run_s[i] > longest_s) longest_s = run_s[i];
        if (c->size[c->ranked[i]] > largest) largest = c->size[c->ranked[i]];
    }
    /* The different numbers of GPUs, ascending. */
    i64 *column = TAKE(s, i64, largest + 1), *gpus = TAKE(s, i64, largest + 1), sizes = 0;
    memset(column, 0, (size_t)(largest + 1) * sizeof *column);
    for (i64 i = 0; i < n; i++) column[c->size[c->ranked[i]]] = 1;
    for (i64 g = 0; g <= largest; g++) {
        if (!column[g]) continue;
        gpus[sizes] = g;
        column[g] = sizes++;
    }
    i64 oldest = bin_of(c->bounds_s, longest_s), count;
    if (c->bounds_s[oldest] < longest_s) oldest++;
    double *hazard = TAKE(s, double, BINS * sizes);
    if (!c->learns) {
        count = oldest + AHEAD < BINS ? oldest + AHEAD : BINS;
        for (i64 b = 0; b < count; b++) {
            for (i64 k = 0; k < sizes; k++) hazard[b * sizes + k] = c->tail[b];
        }
    } else {
        i64 seen = -1, had = c->history_sizes;
        double *going_s = TAKE(s, double, BINS * sizes);
        i64 *there = TAKE(s, i64, BINS * sizes);
        memset(there, 0, (size_t)(BINS * sizes) * sizeof *there);
        for (i64 k = 0; k < BINS * sizes; k++) going_s[k] = 0;
        for (i64 i = 0; i < n; i++) {
            i64 b = own[i], at = b * sizes + column[c->size[c->ranked[i]]];
            double last_s = run_s[i] - c->bounds_s[b];
            there[at]++;
            going_s[at] += last_s < c->width_s[b] ? last_s : c->width_s[b];
        }
        for (i64 k = 0; k < sizes; k++) {
            i64 longer = 0;
            for (i64 b = BINS - 1; b >= 0; b--) {
                going_s[b * sizes + k] += (double)longer * c->width_s[b];
                longer += there[b * sizes + k];
            }
        }
        i64 *known = TAKE(s, i64, sizes); /* column of the history, -1 for none */
        for (i64 k = 0, h = 0; k < sizes; k++) {
            while (h < had && c->history_gpus[h] < gpus[k]) h++;
            known[k] = h < had && c->history_gpus[h] == gpus[k] ? h : -1;
        }
        double log_ratio = log(RATIO);
        for (i64 b = 0; b < BINS; b++) {
            double ended = 0, exposure_s = 0, going = 0, width_s = c->width_s[b];
            for (i64 h = 0; h < had; h++) {
                ended += c->history_ended[b * had + h];
                exposure_s += c->history_exposure_s[b * had + h];
                if (c->history_exposure_s[b * had + h] != 0) seen = b;
            }
            for (i64 k = 0; k < sizes; k++) going += going_s[b * sizes + k];
            double of_all = (ended + c->prior_jobs * log_ratio) /
                            (exposure_s + going + c->prior_jobs * width_s);
            double prior_s = c->size_prior_jobs * width_s;
            for (i64 k = 0; k < sizes; k++) {
                double events = 0, served_s = going_s[b * sizes + k];
                if (known[k] >= 0) {
                    events = c->history_ended[b * had + known[k]];
                    served_s += c->history_exposure_s[b * had + known[k]];
                }
                hazard[b * sizes + k] = (events + prior_s * of_all) / (served_s + prior_s);
            }
        }
        count = oldest > seen + 1 ? oldest : seen + 1;
        count = count + AHEAD < BINS ? count + AHEAD : BINS;
        for (i64 k = 0; k < sizes; k++) { /* as `_with_novel` */
            double passed = 0, of_novel = c->novel;
            for (i64 b = 0; b < count; b++) {
                double h = hazard[b * sizes + k], longer = exp(-passed);
                double part = of_novel / (of_novel + (1 - c->novel) * longer);
                passed += h * c->width_s[b];
                of_novel /= RATIO;
                hazard[b * sizes + k] = part * c->tail[b] + (1 - part) * h;
            }
        }
    }
    /* As `_index`: for each bin and size, what lies in the whole bins ahead. */
    double *ends = TAKE(s, double, count * sizes);
    for (i64 b = 0; b < count; b++) {
        for (i64 k = 0; k < sizes; k++) {
            ends[b * sizes + k] = -expm1(-hazard[b * sizes + k] * c->width_s[b]);
        }
    }
    i64 kinds = count * sizes;
    i64 *first = TAKE(s, i64, kinds), *more = TAKE(s, i64, kinds);
    double **ended_at = TAKE(s, double *, kinds), **spent_at = TAKE(s, double *, kinds);
    for (i64 kind = 0; kind < kinds; kind++) first[kind] = -1;
    for (i64 i = 0; i < n; i++) {
        i64 k = column[c->size[c->ranked[i]]], kind = own[i] * sizes + k;
        double now = hazard[kind];
        if (first[kind] < 0) {
            double *ended = ended_at[kind] = TAKE(s, double, count);
            double *spent_s = spent_at[kind] = TAKE(s, double, count);
            double survived = 1, gone = -ends[kind], at_end = -INFINITY, at_start = -INFINITY;
            i64 best_start = 0, best_end = 0;
            ended[own[i]] = spent_s[own[i]] = 0;
            for (i64 b = own[i]; b < count; b++) {
                double rate = now;
                if (b > own[i]) {
                    double part = survived * ends[b * sizes + k];
                    ended[b] = ended[b - 1] + part;
                    spent_s[b] = spent_s[b - 1] + part / hazard[b * sizes + k];
                    survived *= 1 - ends[b * sizes + k];
                    rate = ended[b] / spent_s[b];
                }
                if (rate > at_end) {
                    at_end = rate;
                    best_end = b;
                }
                double from_start = (ended[b] * (1 + gone) - gone) /
                                    (spent_s[b] * (1 + gone) - gone / now);
                if (from_start > at_start) {
                    at_start = from_start;
                    best_start = b;
                }
            }
            first[kind] = best_end;
            more[kind] = best_start > best_end ? best_start - best_end : 0;
        }
        double rest = expm1(-now * (c->bounds_s[own[i] + 1] - run_s[i])), before_s = rest / now;
        double best = 0;
        for (i64 b = first[kind]; b <= first[kind] + more[kind]; b++) {
            double rate = (ended_at[kind][b] * (1 + rest) - rest) /
                          (spent_at[kind][b] * (1 + rest) - before_s);
            if (b == own[i]) rate = now;
            if (rate > best) best = rate;
        }
        index[i] = best;
    }
    release(s, m);
}

#endif
