"""[OJPP] what a device and a job suffer from sharing, who is easy to place."""

from __future__ import annotations

import numpy as np

from tandem.policy.units import Floats, Ints


def device_interference(device: Ints, slowdown: Floats, devices: int) -> Floats:
    """Return the largest slowdown among the workers on each device; 0 where there is none.

    Symbols: theta_k = the answer, (t' - t) / t = `slowdown` of a worker, without unit; `device` =
    where each worker is. Shapes: `device` and `slowdown` (workers,); the answer (devices,).

    Worked: ResNet at 1.22 and VGG19 at 0.187 on device 0, LeNet at 0.18 on device 1: 1.22, 0.18.

    Source: [OJPP] Eq. (6); the bound on it is Eq. (7), (13).
    """
    worst = np.zeros(devices)
    np.maximum.at(worst, device, slowdown)
    return worst


def spread_after(owner: Ints, device: Ints, slowdown: Floats, after: Floats) -> Floats:
    """Return, for each worker, how unequally its job's workers run if its device alone changes.

    Symbols: v_i = the job, `owner`; max(v_i) - min(v_i) = the answer, without unit; `slowdown` =
    of each worker now, `after` = once its device has changed. Workers of one job on one device
    are alike, before and after. All shapes: (workers,).

    Worked: job 0 on devices 0 and 1 at 0.1 and 0.2; its worker on device 0 would come to 0.35:
    0.15 there; nothing changes by the other's own 0.2: 0.1.

    Source: [OJPP] Eq. (8), (15).
    """
    spread = after - after  # of a worker alone in its job: 0, or not a number where infinite
    gang = np.bincount(owner)[owner] > 1
    if gang.any():
        owner, device, slowdown, after = owner[gang], device[gang], slowdown[gang], after[gang]
        highest = np.maximum(-_least_elsewhere(owner, device, -slowdown), after)
        lowest = np.minimum(_least_elsewhere(owner, device, slowdown), after)
        spread[gang] = highest - lowest
    return spread


def _least_elsewhere(owner: Ints, device: Ints, value: Floats) -> Floats:
    """Return the least value of the same owner on another device, (workers,); infinite if none."""
    order = np.lexsort((value, owner))
    owners, start = np.unique(owner[order], return_index=True)
    least = order[start]  # by owner, its worker of least value
    at = np.searchsorted(owners, owner)
    away = device != device[least][at]
    second = np.full(len(owners), np.inf)
    np.minimum.at(second, at[away], value[away])
    elsewhere: Floats = np.where(away, value[least][at], second[at])
    return elsewhere


def ewma(previous: Floats, observed: Floats, weight_of_past: float) -> Floats:
    """Return the moving average of the interference observed on each device.

    Symbols: theta'_t = the answer, theta'_{t-1} = `previous`, theta_t = `observed`, without unit;
    a = `weight_of_past`, in [0, 1]. Shapes: (devices,).

    Worked: 0.4 until now and 0.2 observed with a = 0.5: 0.3.

    Source: [OJPP] Eq. (18).
    """
    average: Floats = weight_of_past * previous + (1 - weight_of_past) * observed
    return average


def slowdown_with(own: Floats, caused: Floats, classes: Ints, slowdown: Floats) -> Floats:
    """Return the largest slowdown on each GPU with one more job, (gpus,).

    `own` and `caused` are (classes,): what the newcomer suffers from a resident of each class, and
    what it does to one; 0 for the class of an empty slot. `classes` and `slowdown` are
    (gpus, slots): who is there, and the slowdown of each so far, 0 in an empty slot.

    Shapes: (gpus,); fractions of the time alone.

    Worked: a newcomer that suffers 0.1 and causes 0.3 next to a job slowed down by 0.2: 0.5.

    Source: [OJPP] Eq. (6) with one more worker on the device. Slowdowns by several are added.
    """
    # Slot by slot: a reduction over a short axis costs ten times as much as adding its columns.
    mine = own.take(classes[:, 0])
    theirs = caused.take(classes[:, 0])
    theirs += slowdown[:, 0]
    for slot in range(1, classes.shape[1]):
        mine += own.take(classes[:, slot])
        others = caused.take(classes[:, slot])
        others += slowdown[:, slot]
        np.maximum(theirs, others, out=theirs)
    return np.maximum(mine, theirs)


# Paper: [OJPP] Alg. 3, Eq. (20) | least gregarious job first | test:
#   tests/policy/test_policy_equations.py
#   test_gregariousness_is_the_worst_pair_and_orders_by_peak_probability | live: yes |
#   deviation: a job is not compared with itself
def gregariousness(peak_probability: Floats) -> Floats:
    """Return the worst chance of a collision of each queued job with another one in the queue.

    Symbols: tau(i, V) = max over q of tau(i, q), a probability; tau of a pair is p_i p_q, by
    Eq. (4). Lowest first is the order of the heuristic. Shapes: (jobs,) -> (jobs,); one job: 0.

    Worked: p = 0.2, 0.1, 0.5 give 0.1, 0.05, 0.1.

    Source: [OJPP] Eq. (20). Differs: a job is not compared with itself. The order is that of p,
    jobs that have left the queue, so that Alg. 3 need not sort it again before each pick.
    """
    p = np.asarray(peak_probability, dtype=np.float64)
    if len(p) < 2:
        return np.zeros(len(p))
    second, first = np.sort(p)[-2:]
    top = np.arange(len(p)) == int(np.argmax(p))
    worst: Floats = p * np.where(top, second, first)
    return worst
