/* The columns that a cycle works on. */
#ifndef TANDEM_COLUMNS_H
#define TANDEM_COLUMNS_H

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef uint8_t u8;

enum {
    MAX_SLOTS = 8, /* residents of a GPU that have columns */
    EMPTY_SLOT = 0,    /* interference class of an empty slot */
    BINS = 64      /* of running time: equations/worth.py, _BINS */
};

/* The columns of a board, one pointer a column; tandem/policy/compiled/cycle.py has the same
 * fields in the same order, each of eight bytes. */
typedef struct {
    i64 gpus, slots, jobs, nodes, widest_node;
    /* (gpus,), as in GpuArrays */
    const i64 *node;
    const double *memory_capacity_gib;
    double *memory_base_gib, *memory_peak_extra_gib, *memory_peak_sum_gib;
    double *none_in_peak, *one_in_peak;
    u8 *peaks_measured;
    const u8 *guarded;
    double *gpu_utilisation;
    i64 *count; /* residents: `GpuArrays.jobs` */
    const i64 *shares;
    u8 *exclusive;
    const u8 *sliced, *healthy, *fresh;
    const double *over_commit; /* (gpus, 3) */
    const double *compute;
    /* (gpus, slots) */
    i64 *residents, *resident_class;
    double *resident_slowdown;
    const i64 *place; /* (gpus,) */
    /* (jobs,), as in JobArrays */
    const i64 *size;
    const double *arrived_s;
    const u8 *running;
    const double *since_s, *attained_at_since, *service_at_since;
    const i64 *queue;
    /* (jobs,), as in JobColumns */
    const double *base_gib, *extra_gib, *peak_probability;
    const u8 *peaks_may_meet;
    const double *utilisation, *spread_slowdown, *busy_share;
    const u8 *never_shares, *spans, *checkpointable, *known;
    const i64 *wanted, *per_pod, *demand, *table, *job_class;
    const double *own, *caused; /* (tables, classes) */
    i64 classes;
    /* The board */
    double *predicted_speed, *spread_speed; /* (jobs,) */
    u8 *on_gpus, *changed, *untried;        /* (jobs,), (gpus,), (gpus,) */
    u8 *touched;                            /* (gpus,) where jobs came or went in this cycle */
    double *seen_rate;                      /* (jobs,) */
    i64 *seen_queue;                        /* (jobs,) */
    double *rate;                           /* (jobs,) */
    const i64 *pool, *pool_at, *held;       /* rows of a job: held[job] of them at pool[pool_at] */
    const i64 *stale, *pinned;
    i64 stale_count, pinned_count;
    /* Where jobs may go besides: masks (masks, nodes), of how many GPUs of each node they may have
     * some (limits, nodes), and residents to stay away from */
    const i64 *mask_of, *limit_of, *apart_of; /* (jobs,), -1 for none */
    const u8 *masks;
    const i64 *limits;
    const i64 *apart_at, *apart; /* residents of set k: apart[apart_at[k]] to apart[apart_at[k+1]] */
    /* The order */
    const i64 *ranked;
    i64 ranked_count;
    double now_s;
    /* What finished jobs teach, as in `Runs`; `learns` is 0 where nothing is learned */
    i64 learns, history_sizes;
    const i64 *history_gpus;
    const double *history_ended, *history_exposure_s; /* (BINS, sizes) */
    const double *bounds_s, *width_s, *tail;          /* (BINS + 1,), (BINS,), (BINS,) */
    /* Parameters of the dispatch; NaN for none */
    double scale_s, prior_jobs, size_prior_jobs, novel, aging, gang_weight, preempt_factor, turn_share;
    double move_cost_s, move_below_speed, min_speed, min_gain, equal_worth;
    i64 shares_gpus, locality, best_pair, demands_tried;
    /* Constraints: 1 where the pipeline has them; bounds are infinite where it has none */
    i64 needs_healthy, needs_fresh, needs_shares, at_most, needs_exclusive, needs_whole, needs_memory;
    i64 peaks_fit, peaks_opportunistic, strict_collision;
    double max_collision_probability, max_utilisation, max_interference;
    /* Scorers: weights as shares of their sum, 0 where the pipeline has none */
    double horus_weight, horus_memory_weight, horus_utilisation_weight, in_use_weight;
    /* Answer: actions as (kind, job, count of rows, rows...) */
    i64 *actions;
    i64 actions_room, actions_used;
} Cycle;

#endif
