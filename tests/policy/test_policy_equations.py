"""Each equation against its worked number, and against a slow, obvious twin on random input."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from studies import equations_doc
from tandem.policy.equations import ojpp, pair, sharing, tiresias
from tandem.policy.equations.collision import collision_probability, memory_needed_gib
from tandem.policy.equations.gittins import GittinsIndex, fixed_quantum_index
from tandem.policy.equations.horus import (
    GTX_1080,
    RTX_2080,
    gpu_memory_bytes,
    placement_cost,
    slowdown,
    slowdown_over_commit,
)
from tandem.policy.equations.xonar import active_idle_misfit

Shares = st.floats(0, 1)
Times = st.floats(0.1, 1e4)
Ratios = st.floats(1, 5)


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


# --- Horus --------------------------------------------------------------------------------------


def test_horus_worked_numbers() -> None:
    assert slowdown(array(12, 9), array(10, 10)) == pytest.approx([0.2, 0.0])
    assert gpu_memory_bytes(2, 3, 10, 1, 4) == 22
    assert slowdown_over_commit(array(200), GTX_1080)[0] == pytest.approx(2.27, abs=0.005)
    assert slowdown_over_commit(array(200), RTX_2080)[0] == pytest.approx(2.16, abs=0.005)
    assert slowdown_over_commit(array(100), RTX_2080)[0] == pytest.approx(1.265, abs=5e-4)


@given(st.lists(st.tuples(Times, Times), min_size=1, max_size=8))
def test_slowdown_is_never_negative_and_inverts_to_the_time(
    pairs: list[tuple[float, float]],
) -> None:
    together, alone = array(*(p[0] for p in pairs)), array(*(p[1] for p in pairs))
    slow = [max(t / a - 1, 0.0) for t, a in pairs]
    assert slowdown(together, alone) == pytest.approx(slow)


@given(st.integers(1, 512), *[st.floats(0, 1e9)] * 4)
def test_memory_is_the_sum_of_its_parts_item_by_item(
    batch: int, activations: float, parameters: float, gradients: float, start_up: float
) -> None:
    slow = parameters + start_up
    for _ in range(batch):
        slow += activations + gradients
    fast = gpu_memory_bytes(batch, activations, parameters, gradients, start_up)
    assert fast == pytest.approx(slow)


@given(st.floats(0, 1), st.floats(0, 300))
def test_cost_agrees_with_its_two_branches(memory: float, utilisation: float) -> None:
    c0, c1, c2 = RTX_2080
    if utilisation > 100:
        ratio = c0 + c1 * utilisation + c2 * utilisation**2
    else:
        ratio = 1 + 0.26464 * utilisation / 100
    cost = placement_cost(array(memory), array(utilisation))[0]
    assert cost == pytest.approx(0.5 * memory + 0.5 * ratio)


# --- OJPP ---------------------------------------------------------------------------------------


def test_ojpp_worked_numbers() -> None:
    one = array(1.0), array(0.0)
    assert collision_probability(*one, 0.2)[0] == pytest.approx(0.0)
    assert collision_probability(array(0.8), array(0.2), 0.2)[0] == pytest.approx(0.04)
    assert collision_probability(array(0.64), array(0.32), 0.2)[0] == pytest.approx(0.104)
    # Two ResNets of <0.3, 0.62, 0.2> do not fit one device: two bases and a peak are 1.22.
    assert memory_needed_gib(array(0.3), array(0.62), 0.3, 0.62)[0] == pytest.approx(1.22)
    worst = ojpp.device_interference(np.array([0, 0, 1]), array(1.22, 0.187, 0.18), 3)
    assert worst == pytest.approx([1.22, 0.18, 0.0])
    spread = ojpp.spread_after(
        np.array([0, 0]), np.array([0, 1]), array(0.1, 0.2), array(0.35, 0.2)
    )
    assert spread == pytest.approx([0.15, 0.1])
    own, caused, there = array(0, 0.1), array(0, 0.3), np.array([[1, 0], [0, 0]])
    worst = ojpp.slowdown_with(own, caused, there, np.array([[0.2, 0], [0, 0]]))
    assert worst == pytest.approx([0.5, 0])
    assert ojpp.ewma(array(0.4), array(0.2), 0.5) == pytest.approx([0.3])
    assert ojpp.gregariousness(array(0.2, 0.1, 0.5)) == pytest.approx([0.1, 0.05, 0.1])


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 3)), max_size=3), max_size=5),
    st.lists(st.floats(0, 3), min_size=3, max_size=3),
    st.lists(st.floats(0, 3), min_size=3, max_size=3),
)
def test_the_slowdown_with_one_more_is_the_largest_of_the_newcomer_and_the_others(
    gpus: list[list[tuple[int, float]]], own: list[float], caused: list[float]
) -> None:
    full = [there + [(0, 0.0)] * (3 - len(there)) for there in gpus]
    fast = ojpp.slowdown_with(
        array(0, *own),
        array(0, *caused),
        np.array([[kind for kind, _ in there] for there in full], dtype=np.int64).reshape(-1, 3),
        np.array([[slowdown for _, slowdown in there] for there in full]).reshape(-1, 3),
    )
    slow = [
        max(
            sum(own[kind - 1] for kind, _ in there),
            max([slowdown + caused[kind - 1] for kind, slowdown in there], default=0.0),
        )
        for there in gpus
    ]
    assert fast == pytest.approx(slow)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 3)), max_size=12))
def test_device_interference_is_the_maximum_of_each_device(
    workers: list[tuple[int, float]],
) -> None:
    fast = ojpp.device_interference(
        np.array([d for d, _ in workers], dtype=np.int64), array(*(s for _, s in workers)), 4
    )
    slow = [max([s for d, s in workers if d == device], default=0.0) for device in range(4)]
    assert fast == pytest.approx(slow)


@given(st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 4)), st.tuples(Shares, Shares)))
def test_spread_agrees_with_raising_one_device_at_a_time(
    workers: dict[tuple[int, int], tuple[float, float]],
) -> None:
    assume(workers)
    owner = np.array([job for job, _ in workers])
    device = np.array([row for _, row in workers])
    before, after = (array(*(pair[i] for pair in workers.values())) for i in (0, 1))
    slow = []
    for (job, row), (_, changed) in workers.items():
        own = [
            changed if other_row == row else now
            for (other, other_row), (now, _) in workers.items()
            if other == job
        ]
        slow.append(max(own) - min(own))
    assert ojpp.spread_after(owner, device, before, after) == pytest.approx(slow)


@given(st.lists(Shares, min_size=2, max_size=8))
def test_gregariousness_is_the_worst_pair_and_orders_by_peak_probability(ps: list[float]) -> None:
    fast = ojpp.gregariousness(array(*ps))
    slow = []
    for i, p in enumerate(ps):
        pairs = [
            collision_probability(array(1 - q), array(q), p)[0] for j, q in enumerate(ps) if j != i
        ]
        slow.append(max(pairs))
    assert fast == pytest.approx(slow, abs=1e-9)
    assert (np.diff(fast[np.argsort(ps, kind="stable")]) >= -1e-12).all()


@given(st.lists(st.tuples(Shares, Shares), min_size=1, max_size=20), Shares)
def test_the_moving_average_weighs_what_is_older_less(
    history: list[tuple[float, float]], weight: float
) -> None:
    value, slow = array(0.0), 0.0
    for k, (observed, _) in enumerate(history):
        value = ojpp.ewma(value, array(observed), weight)
        slow += (1 - weight) * observed * weight ** (len(history) - 1 - k)
    assert value[0] == pytest.approx(slow, abs=1e-9)


# --- Tiresias -----------------------------------------------------------------------------------


def test_tiresias_worked_numbers() -> None:
    service = tiresias.attained_service_gpu_s(np.array([4, 8]), array(100, 40))
    assert service.tolist() == [400, 320]
    level = tiresias.queue_level(array(3249, 3250, 7200), array(3250, 7200))
    assert level.tolist() == [0, 1, 2]
    assert tiresias.promotion_wait_s(array(60, 0), 8.0).tolist() == [480, np.inf]
    assert tiresias.promotion_wait_s(array(60, 0), np.inf).tolist() == [np.inf, np.inf]
    assert tiresias.promotion_wait_s(array(60), 8.0, starve_limit_s=600).tolist() == [600]
    skew = tiresias.tensor_skew(array(102_760_448, 0), array(138_357_544, 0))
    assert skew == pytest.approx([0.743, 1.0], abs=5e-4)


@given(st.lists(st.floats(0, 1e4), max_size=8), st.lists(st.floats(1, 1e4), max_size=4))
def test_a_queue_is_the_number_of_thresholds_passed(
    services: list[float], thresholds: list[float]
) -> None:
    thresholds = sorted(thresholds)
    slow = [sum(t <= service for t in thresholds) for service in services]
    assert tiresias.queue_level(array(*services), array(*thresholds)).tolist() == slow


@given(st.integers(1, 64), st.integers(0, 200))
def test_service_is_a_gpu_second_for_each_gpu_and_second(gpus: int, seconds: int) -> None:
    slow = sum(1 for _ in range(gpus) for _ in range(seconds))
    assert tiresias.attained_service_gpu_s(np.array([gpus]), array(seconds)).tolist() == [slow]


@given(Times, st.integers(1, 100), st.integers(0, 10), st.integers(0, 1000))
def test_promotion_waits_for_the_later_of_both(
    waited: float, executed: int, knob: int, limit: int
) -> None:
    promoted = waited >= tiresias.promotion_wait_s(array(executed), knob, limit)[0]
    assert promoted == (waited >= knob * executed and waited >= limit)


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=8))
def test_skew_is_a_share(tensors: list[float]) -> None:
    skew = tiresias.tensor_skew(array(max(tensors)), array(sum(tensors)))[0]
    assert skew == pytest.approx(max(t / sum(tensors) for t in tensors))


@given(st.lists(st.floats(1, 1e3), min_size=1, max_size=12), st.floats(0, 999))
def test_the_gittins_index_is_the_supremum_over_quanta(
    samples: list[float], attained: float
) -> None:
    beyond = [s - attained for s in samples if s > attained]
    assume(all(b > 1e-3 for b in beyond))
    slow = 0.0
    for quantum in beyond:  # between samples only the time spent grows
        spent = sum(min(b, quantum) for b in beyond)
        slow = max(slow, sum(b <= quantum for b in beyond) / spent)
    index = GittinsIndex.of(array(*samples))
    assert index(array(attained))[0] == pytest.approx(slow, rel=1e-6)


@given(st.lists(st.floats(1, 1e3), min_size=1, max_size=12), st.floats(0, 999), st.floats(1, 500))
def test_the_index_of_a_given_quantum_is_completions_per_time_spent(
    samples: list[float], attained: float, quantum: float
) -> None:
    beyond = [s - attained for s in samples if s > attained]
    assume(all(abs(b - quantum) > 1e-6 and b > 1e-3 for b in beyond))
    spent = sum(min(b, quantum) for b in beyond)
    slow = sum(b <= quantum for b in beyond) / spent if beyond else 0.0
    fast = fixed_quantum_index(np.sort(array(*samples)), array(attained), array(quantum))
    assert fast[0] == pytest.approx(slow, rel=1e-6)


# --- SJF-BSBF -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_s", "second_s", "ratio", "overlapped", "sequential"),
    [(10, 10, 1.4, 14, 15), (10, 10, 1.6, 16, 15), (10, 4, 2, 11, 12), (4, 10, 2, 11, 9)],
)
def test_worked_pairs_of_theorem_1(
    first_s: float, second_s: float, ratio: float, overlapped: float, sequential: float
) -> None:
    work = array(first_s), array(second_s), array(ratio), array(ratio)
    assert pair.mean_completion_s(array(0), *work) == pytest.approx([overlapped])
    assert pair.mean_completion_s(array(first_s), *work) == pytest.approx([sequential])
    assert sharing.sharing_benefit_s(*work) == pytest.approx([sequential - overlapped])


@given(Times, Times, Ratios, Ratios, Shares)
def test_no_start_beats_both_ends(
    first_s: float, second_s: float, first_ratio: float, second_ratio: float, part: float
) -> None:
    work = array(first_s), array(second_s), array(first_ratio), array(second_ratio)
    now, last = (pair.mean_completion_s(array(at), *work)[0] for at in (0.0, first_s))
    between = pair.mean_completion_s(array(part * first_s), *work)[0]
    assert between >= min(now, last) * (1 - 1e-9)
    assert sharing.sharing_benefit_s(*work)[0] == pytest.approx(last - now, abs=1e-6 * last)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 40), Ratios, Ratios)
def test_the_mean_agrees_with_stepping_through_time(
    first: int, second: int, start: int, first_ratio: float, second_ratio: float
) -> None:
    assume(start <= first)
    left, ends, now = [float(first), float(second)], [0.0, 0.0], 0.0
    step = 0.01
    while max(left) > 1e-9:
        here = [left[0] > 1e-9, left[1] > 1e-9 and now >= start - 1e-9]
        for i, ratio in enumerate((first_ratio, second_ratio)):
            if here[i]:
                left[i] -= step / (ratio if all(here) else 1.0)
                ends[i] = now + step
        now += step
    fast = pair.mean_completion_s(
        array(start), array(first), array(second), array(first_ratio), array(second_ratio)
    )
    assert fast[0] == pytest.approx(sum(ends) / 2, abs=5 * step)


@given(st.integers(1, 256), st.integers(1, 16), st.floats(0, 1), st.floats(0, 0.1), Ratios)
def test_an_iteration_is_its_micro_batches_one_after_the_other(
    batch: int, steps: int, fixed_s: float, per_item_s: float, overlap: float
) -> None:
    exchange_s = pair.communication_s(array(1e8), 0.01, 1e-9)[0]
    assert exchange_s == pytest.approx(0.11)
    slow = 0.0
    for step in range(steps):
        compute = fixed_s + per_item_s * batch / steps
        last = step == steps - 1
        slow += (compute**overlap + exchange_s**overlap) ** (1 / overlap) if last else compute
    fast = sharing.iteration_time_s(
        array(batch), steps, compute_fixed_s=fixed_s, compute_per_item_s=per_item_s,
        communication_s=exchange_s, overlap=overlap,
    )  # fmt: skip
    assert fast[0] == pytest.approx(slow)


@given(Times, Ratios)
def test_a_stretched_iteration_has_the_slowdown_it_was_stretched_by(
    alone: float, ratio: float
) -> None:
    assert pair.stretched_s(array(0.2), array(1.4)) == pytest.approx([0.28])
    stretched = pair.stretched_s(array(alone), array(ratio))
    assert slowdown(stretched, array(alone))[0] == pytest.approx(ratio - 1, abs=1e-9)


# --- Xonar --------------------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_misfit_agrees_with_active_and_idle_times(busy: float, other: float) -> None:
    active, idle = 3.0 * busy, 3.0 * (1 - busy)
    other_active, other_idle = 7.0 * other, 7.0 * (1 - other)
    slow = abs(active / idle * (other_active / other_idle) - 1)
    assert active_idle_misfit(array(busy), other)[0] == pytest.approx(slow, rel=1e-6, abs=1e-9)


def test_xonar_worked_numbers() -> None:
    assert active_idle_misfit(array(0.25, 0.5), 0.75) == pytest.approx([0.0, 2.0])
    assert np.isinf(active_idle_misfit(array(0.5), 1.0)[0])


# --- the page -----------------------------------------------------------------------------------


def test_the_page_of_equations_is_current() -> None:
    assert equations_doc.PAGE.read_text() == equations_doc.page(), (
        "python -m studies.equations_doc --write"
    )


@pytest.mark.parametrize(
    ("name", "thing"), [pair for module in equations_doc.modules()
                        for pair in equations_doc.equations_of(module)],
)  # fmt: skip
def test_each_equation_says_where_it_is_from_and_gives_a_number(name: str, thing: object) -> None:
    text = thing.__doc__ or ""
    assert "Source:" in text, name
    assert "Worked" in text, name
    assert "Shapes" in text or "shape" in text.lower(), name
