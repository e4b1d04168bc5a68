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

/* The columns of a board, one pointer a column, and what decides on them. This is the only list of
 * the fields: tandem/policy/compiled/cycle.py reads types, names and order from the library. */
#define CYCLE_FIELDS(F) \
    F(i64, gpus) F(i64, slots) F(i64, jobs) F(i64, nodes) F(i64, widest_node) \
    /* (gpus,), as in GpuArrays */ \
    F(const i64 *, node) \
    F(const double *, memory_capacity_gib) \
    F(double *, memory_base_gib) F(double *, memory_peak_extra_gib) \
    F(double *, memory_peak_sum_gib) \
    F(double *, none_in_peak) F(double *, one_in_peak) \
    F(u8 *, peaks_measured) \
    F(const u8 *, guarded) \
    F(double *, gpu_utilisation) \
    /* residents: `GpuArrays.jobs` */ \
    F(i64 *, count) \
    F(const i64 *, shares) \
    F(u8 *, exclusive) \
    F(const u8 *, sliced) F(const u8 *, healthy) F(const u8 *, fresh) \
    /* (gpus, 3) */ \
    F(const double *, over_commit) \
    F(const double *, compute) \
    /* (gpus, slots) */ \
    F(i64 *, residents) F(i64 *, resident_class) \
    F(double *, resident_slowdown) \
    /* (gpus,) */ \
    F(const i64 *, place) \
    /* (jobs,), as in JobArrays */ \
    F(const i64 *, size) \
    F(const double *, arrived_s) \
    F(const u8 *, running) \
    F(const double *, since_s) F(const double *, attained_at_since) \
    F(const double *, service_at_since) \
    F(const i64 *, queue) \
    /* (jobs,), as in JobColumns */ \
    F(const double *, base_gib) F(const double *, extra_gib) \
    F(const double *, peak_probability) \
    F(const u8 *, peaks_may_meet) \
    F(const double *, utilisation) F(const double *, spread_slowdown) \
    F(const double *, busy_share) \
    F(const u8 *, never_shares) F(const u8 *, spans) F(const u8 *, checkpointable) \
    F(const u8 *, known) \
    F(const i64 *, wanted) F(const i64 *, per_pod) F(const i64 *, demand) \
    F(const i64 *, table) F(const i64 *, job_class) \
    /* (tables, classes) */ \
    F(const double *, own) F(const double *, caused) \
    F(i64, classes) \
    /* The board */ \
    /* (jobs,) */ \
    F(double *, predicted_speed) F(double *, spread_speed) \
    /* (jobs,), (gpus,), (gpus,) */ \
    F(u8 *, on_gpus) F(u8 *, changed) F(u8 *, untried) \
    /* (gpus,) where jobs came or went in this cycle */ \
    F(u8 *, touched) \
    /* (jobs,) */ \
    F(double *, seen_rate) \
    /* (jobs,) */ \
    F(i64 *, seen_queue) \
    /* (jobs,) */ \
    F(double *, rate) \
    /* rows of a job: held[job] of them at pool[pool_at] */ \
    F(const i64 *, pool) F(const i64 *, pool_at) F(const i64 *, held) \
    F(const i64 *, stale) F(const i64 *, pinned) \
    F(i64, stale_count) F(i64, pinned_count) \
    /* Where jobs may go besides: masks (masks, nodes), of how many GPUs of each \
     * node they may have some (limits, nodes), and residents to stay away from */ \
    /* (jobs,), -1 for none */ \
    F(const i64 *, mask_of) F(const i64 *, limit_of) F(const i64 *, apart_of) \
    F(const u8 *, masks) \
    F(const i64 *, limits) \
    /* residents of set k: apart[apart_at[k]] to apart[apart_at[k+1]] */ \
    F(const i64 *, apart_at) F(const i64 *, apart) \
    /* The order */ \
    F(const i64 *, ranked) \
    F(i64, ranked_count) \
    F(double, now_s) \
    /* What finished jobs teach, as in `Runs`; `learns` is 0 where nothing is learned */ \
    F(i64, learns) F(i64, history_sizes) \
    F(const i64 *, history_gpus) \
    /* (BINS, sizes) */ \
    F(const double *, history_ended) F(const double *, history_exposure_s) \
    /* (BINS + 1,), (BINS,), (BINS,) */ \
    F(const double *, bounds_s) F(const double *, width_s) F(const double *, tail) \
    /* Parameters of the dispatch; NaN for none */ \
    F(double, scale_s) F(double, prior_jobs) F(double, size_prior_jobs) F(double, novel) \
    F(double, aging) F(double, gang_weight) F(double, preempt_factor) F(double, turn_share) \
    F(double, move_cost_s) F(double, move_below_speed) F(double, min_speed) \
    F(double, min_gain) F(double, equal_worth) \
    F(i64, shares_gpus) F(i64, locality) F(i64, best_pair) F(i64, demands_tried) \
    /* Constraints: 1 where the pipeline has them; bounds are infinite where it has none */ \
    F(i64, needs_healthy) F(i64, needs_fresh) F(i64, needs_shares) F(i64, at_most) \
    F(i64, needs_exclusive) F(i64, needs_whole) F(i64, needs_memory) \
    F(i64, peaks_fit) F(i64, peaks_opportunistic) F(i64, strict_collision) \
    F(double, max_collision_probability) F(double, max_utilisation) \
    F(double, max_interference) \
    /* Scorers: weights as shares of their sum, 0 where the pipeline has none */ \
    F(double, horus_weight) F(double, horus_memory_weight) \
    F(double, horus_utilisation_weight) F(double, in_use_weight) \
    /* Answer: actions as (kind, job, count of rows, rows...) */ \
    F(i64 *, actions) \
    F(i64, actions_room) F(i64, actions_used)

#define CYCLE_MEMBER(type, name) type name;
#define CYCLE_TEXT(type, name) #type " " #name ";"

typedef struct {
    CYCLE_FIELDS(CYCLE_MEMBER)
} Cycle;

#endif
