"""[Tiresias] attained service, its queues, promotion, and who needs to be kept together."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats, Ints


def attained_service_gpu_s(gpus: Ints, run_s: Floats) -> Floats:
    """Return the service that a job gains by running; who has attained least goes first.

    Symbols: W_J = `gpus`, t_J = `run_s`, the time it runs; the priority is -W_J t_J. Shapes:
    (jobs,) -> (jobs,), in GPU-seconds.

    Worked: 4 GPUs for 100 s: 400, behind 8 GPUs for 40 s: 320.

    Source: [Tiresias] 3.2.1.
    """
    service: Floats = gpus * run_s
    return service


def queue_level(service_gpu_s: Floats, thresholds_gpu_s: Floats) -> Ints:
    """Return the queue of each job, 0 first; a job that comes to a threshold is demoted.

    Shapes: `service_gpu_s` (jobs,), `thresholds_gpu_s` (K - 1,) ascending, both in GPU-seconds;
    the answer (jobs,).

    Worked: 3,249, 3,250 and 7,200 with thresholds 3,250 and 7,200: queues 0, 1, 2.

    Source: [Tiresias] 3.2.3.
    """
    return np.searchsorted(thresholds_gpu_s, service_gpu_s, side="right")


# Paper: [Tiresias] 3.2.3, Pseudocode 2 line 6 | starvation: PROMOTEKNOB and STARVELIMIT | test:
#   tests/papers/test_papers_scenarios.py test_the_rule_decides | live: yes | deviation: the text
#   has a knob and the listing a limit; both must be reached
def promotion_wait_s(
    executed_s: Floats, promote_knob: float, starve_limit_s: float = 0.0
) -> Floats:
    """Return after which wait a job has starved and goes back to the first queue.

    Symbols: t_J = `executed_s`, since the last promotion; delta_J >= the answer promotes. An
    infinite knob never promotes, nor is a job promoted that never ran. Shapes: (jobs,), seconds.

    Worked: knob 8, executed 60 s: 480 s; with a limit of 600 s: 600 s; never executed: infinite.

    Source: [Tiresias] 3.2.3, Pseudocode 2 line 6. Differs: the text has a knob and the listing a
    limit; both must be reached.
    """
    with np.errstate(invalid="ignore"):
        due = np.maximum(promote_knob * np.asarray(executed_s), starve_limit_s)
    wait: Floats = np.where(np.asarray(executed_s) > 0, due, np.inf)
    return wait


# Paper: [Tiresias] 3.3.1, Table 6 | skew of the tensors of a model | test:
#   tests/papers/test_papers_evaluation.py
#   test_the_skews_of_tiresias_table_6_are_those_of_the_models_tensors | live: yes | deviation:
#   read off the graph instead of the traffic of parameter servers, which PyTorch jobs do not have
def tensor_skew(largest_tensor_bytes: Floats, model_bytes: Floats) -> Floats:
    """Return the share of a model that its largest tensor holds; 1 where nothing is known.

    Symbols: S_J = the answer, in (0, 1]. Above the pack limit (0.5, ours) a job wants the fewest
    machines. Shapes: (models,), bytes.

    Worked: VGG16, 102,760,448 of 138,357,544 parameters in one tensor: 0.743, as in Table 6.

    Source: [Tiresias] 3.3.1, Table 6. Differs: read off the model's graph instead of its network
    traffic.
    """
    known = model_bytes > 0
    skew: Floats = np.where(known, largest_tensor_bytes / np.where(known, model_bytes, 1.0), 1.0)
    return skew


# Paper: [Tiresias] 3.3, Fig. 3 | what a spread gang loses, as a price | test:
#   tests/simulator/test_simulator_spread.py
#   test_a_gang_takes_the_empty_node_and_not_the_rests_of_two | live: yes | ablation: spread |
#   deviation: ours: the paper decides by PACKLIMIT alone
def spread_price(skew: Floats, gpus: Ints | int) -> Floats:
    """Return the slowdown that is expected of a gang on more nodes than it needs, per job.

    Symbols: S_J = `skew`, n = `gpus` of the gang. In an all-reduce each worker sends 2 (n - 1) / n
    of the model's bytes a step; the largest tensor's share of them does not overlap with others.
    Shapes: (jobs,), without unit; 0 for one GPU.

    Worked: VGG19, 0.715, on 4 GPUs: 1.07; ResNet50, 0.092, on 8: 0.16 (V100s, measured by
    [Gavel] with batches of 16 and 32: 0.10 and 0.05).

    Source: ours, after [Tiresias] 3.3: the more skewed, the more a spread gang loses.
    """
    price: Floats = 2 * np.asarray(skew, dtype=np.float64) * (1 - 1 / np.asarray(gpus))
    return price


# Paper: [Tiresias] 3.3.2 | PACKLIMIT learned from past placements | test:
#   tests/queue/test_queue_placements.py
#   test_the_pack_limit_is_learned_from_gangs_that_ran_spread_and_on_few_nodes | live: yes |
#   deviation: by namespace, since jobs tell their own speed; 0.5 until gangs of one kind have run
#   both spread and on few nodes
def learned_pack_limit(skew: Floats, slowdown: Floats, bound: float, default: float = 0.5) -> float:
    """Return the skew above which gangs had better stay on the fewest nodes, from past placements.

    Symbols: PACKLIMIT = the answer; S_J = `skew` and `slowdown` of gangs that ran spread; those
    slowed down by more than `bound` were hurt. Shapes: (gangs,), without unit. The answer is the
    threshold on the skew that calls the fewest gangs wrongly (ties: the highest), half way between
    two neighbouring skews; `default` where both kinds have not been seen.

    Worked: skews 0.05, 0.1, 0.6, 0.7 slowed down by 0, 0.02, 0.4, 0.9, bound 0.1: 0.35.

    Source: [Tiresias] 3.3.2, a linear classifier of placement and performance.
    """
    hurt = np.asarray(slowdown) > bound
    if hurt.all() or not hurt.any():
        return default
    values = np.sort(skew)
    values = values[np.append(True, np.diff(values) > 0)]
    limits = np.concatenate(([0.0], (values[1:] + values[:-1]) / 2, [1.0]))
    wrong = ((np.asarray(skew) > limits[:, None]) != hurt).sum(axis=1)
    return float(limits[len(limits) - 1 - int(np.argmin(wrong[::-1]))])
