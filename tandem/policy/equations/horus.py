"""[Horus] Eq. (7)-(10): the cost of adding a job to a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.policy.units import Floats

# Fitted execution-time ratio above 100 % total utilisation: c0 + c1 x + c2 x^2, x in percent.
# Differs: the text prints the coefficients in the reverse order, which is impossible; in this
# order x = 200 gives 2.27 and 2.16, inside the 1.5x-3x that the paper reports.
GTX_1080 = (1.32198, -0.00728, 6e-5)
RTX_2080 = (1.16664, -0.00302, 4e-5)
# Ours, for GPU types that the paper did not measure: the mean of its two curves, coefficient by
# coefficient, which is their interpolation half way at each utilisation.
OTHER_GPU = (1.24431, -0.00515, 5e-5)

_CURVES = {"GTX1080": GTX_1080, "RTX2080": RTX_2080}


# Paper: [Horus] Eq. (9), Fig. 4 | over-commit curve per GPU type | test:
#   tests/policy/test_policy_horus.py test_the_cost_of_over_commit_is_that_of_the_gpu_type |
#   live: yes | deviation: types that the paper did not measure have the mean of its two curves
def over_commit_curve(gpu_model: str) -> tuple[float, float, float]:
    """Return the coefficients of the over-commit curve of a GPU type, by its name.

    Symbols: f_tau^+ of Eq. (9), tau = `gpu_model`, as NVML or a cluster specification names it.
    Shapes: three coefficients, of 1, x and x^2, x in percent.

    Worked: "NVIDIA GeForce RTX 2080" has the paper's RTX 2080; "NVIDIA A100-SXM4-40GB" has the mean
    of its two curves, 1.24431 - 0.00515 x + 0.00005 x^2: 1.229 at 100 %, 2.214 at 200 %.

    Source: [Horus] Eq. (9), Fig. 4, whose functions depend on the GPU type. Differs: the paper
    measured two types; all others take the mean of the two.
    """
    name = "".join(part for part in gpu_model.upper() if part.isalnum())
    for kind, curve in _CURVES.items():
        at = name.find(kind)
        # A 2080 Ti or a 1080 Ti is another GPU.
        if at >= 0 and not name[at + len(kind) :].startswith("TI"):
            return curve
    return OTHER_GPU


# Paper: [Horus] Eq. (1) | slowdown of a co-located job | test:
#   tests/policy/test_policy_equations.py
#   test_slowdown_is_never_negative_and_inverts_to_the_time | live: yes | deviation: clipped at
#   0
def slowdown(together_s: Floats, alone_s: Floats) -> Floats:
    """Return t_colocated / t_solo - 1, clipped at 0. Shapes: equal; without unit.

    Worked: 12 s next to another job, 10 s alone: 0.2.

    Source: [Horus] Eq. (1).
    """
    ratio: Floats = np.maximum(together_s / alone_s - 1, 0.0)
    return ratio


# Paper: [Horus] Eq. (2) | GPU memory of a job from its graph | test:
#   tests/predictor/test_predictor_load.py test_memory_of_horus_worked | live: yes | deviation:
#   the optimizer, the precision and the start-up are added
def gpu_memory_bytes(
    batch: int, activations: float, parameters: float, gradients: float, start_up: float
) -> float:
    """Return the memory of a training job on one GPU: (B A + P) + B G + delta, in bytes.

    Symbols: B = `batch`, A = `activations`, P = `parameters`, G = `gradients`, delta = `start_up`;
    A and G are for one item of the batch. Shapes: numbers.

    Worked: B = 2, A = 3, P = 10, G = 1, delta = 4 give 22.

    Source: [Horus] Eq. (2).
    """
    return batch * activations + parameters + batch * gradients + start_up


def slowdown_over_commit(
    total_utilisation: Floats, coefficients: Sequence[float] | Floats = RTX_2080
) -> Floats:
    """Return the ratio of execution times (>= 1) at a GPU's total utilisation, in percent.

    Above 100 % the fitted quadratic; below, a line from 1 at idle to the quadratic's value at
    100 % (about linear in the paper, which does not publish it). The quadratic is never used below
    its minimum. Shapes: (gpus,) -> (gpus,); `coefficients` (3,), or (gpus, 3) where types differ.

    Worked: at 200 %, 2.27 on a GTX 1080 and 2.16 on an RTX 2080; at 100 %, 1.194 and 1.265.

    Source: [Horus] Eq. (9)-(10). Differs: the coefficients are read in the reverse of their printed
    order, which is impossible.
    """
    c0, c1, c2 = np.asarray(coefficients, dtype=np.float64).T
    at_100 = c0 + c1 * 100 + c2 * 100**2
    x = total_utilisation
    ratio: Floats = np.where(x > 100, c0 + c1 * x + c2 * x * x, 1 + (at_100 - 1) * x / 100)
    return ratio


# Paper: [Horus] Eq. (7), (8), (10) | cost of a GPU for a job | test:
#   tests/policy/test_policy_equations.py test_cost_agrees_with_its_two_branches | live: yes |
#   ablation: horus cost | deviation: in `tandem` it decides among places of equal worth
def placement_cost(
    memory_share_after: Floats,
    total_utilisation_after: Floats,
    memory_weight: float = 0.5,
    utilisation_weight: float = 0.5,
    coefficients: Sequence[float] | Floats = RTX_2080,
) -> Floats:
    """Return w1 * memory used / capacity + w2 * f(total utilisation), after the job is added.

    Shapes: (gpus,); memory as a share of capacity, utilisation in percent, cost without unit.

    Worked: memory half full at 200 % on an RTX 2080: 0.5 x 0.5 + 0.5 x 2.16 = 1.33.

    Source: [Horus] Eq. (7)-(8).
    """
    ratio = slowdown_over_commit(total_utilisation_after, coefficients)
    return memory_weight * memory_share_after + utilisation_weight * ratio
