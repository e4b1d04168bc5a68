"""Slices of MIG for policies: whom they take, and what part of a GPU they are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.gpu_types import GIB, compute_share, find_gpu, most_memory_bytes, type_name
from tandem.policy.catalog import load_profile, profile_names
from tandem.policy.cluster import Snapshot
from tandem.policy.constraints.slices import Slices
from tandem.policy.decision import Placement, Waits
from tandem.policy.job import Job
from tandem.reasons.causes import Reason

A100 = "NVIDIA A100-SXM4-80GB"
ROWS = [("n0", "GPU-1", 80.0), *(("n0", f"MIG-{number}", 10.0) for number in range(7))]


def snapshot() -> Snapshot:
    found = Snapshot.from_rows(ROWS)
    sliced = np.array([gpu.startswith("MIG") for gpu in found.gpu_ids])
    return replace(found, gpus=replace(found.gpus, sliced=sliced, shares=np.where(sliced, 1, 2)))


@pytest.mark.parametrize("name", profile_names())
def test_under_every_profile_slices_are_for_jobs_of_one_gpu(name):
    pipeline = load_profile(name).pipeline()
    for job in (Job(id="a", pods=2), Job(id="a", gpus_per_pod=2)):
        decision = pipeline.place(job, snapshot())
        assert isinstance(decision, Waits)
        slices = [cause.gpus for cause in decision.causes if cause.reason is Reason.SLICE]
        assert slices == [7]
    assert isinstance(pipeline.place(Job(id="a", memory_base_gib=5.0), snapshot()), Placement)
    assert sum(each.kind == "slices" for each in pipeline.constraints) == 1


def test_a_part_of_a_gang_is_no_job_of_one_gpu():
    gpus = snapshot().gpus
    assert Slices()(Job(id="a"), gpus).all()
    assert not Slices()(Job(id="a", gang_gpus=2), gpus)[gpus.sliced].any()
    assert Job(id="a").demand != Job(id="a", gang_gpus=2).demand


def test_a_profile_that_names_the_constraint_has_it_once():
    profile = load_profile("fifo")
    named = profile.model_copy(update={"constraints": (*profile.constraints, Slices())})
    assert named.rules == named.constraints


@pytest.mark.parametrize(
    ("model", "compute", "memory", "gib"),
    [
        (f"{A100} MIG 1g.10gb", 1 / 7, 1 / 8, 10),
        (f"{A100} MIG 3g.40gb", 3 / 7, 1 / 2, 40),
        (f"{A100} MIG 7g.80gb", 1, 1, 80),
        (f"{A100} MIG 1c.3g.40gb", 1 / 7, 1 / 2, 40),
        (f"{A100} MIG 1g.10gb+me", 1 / 7, 1 / 8, 10),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1 / 7, 1 / 8, 5),
        ("NVIDIA H100 80GB HBM3 MIG 2g.20gb", 2 / 7, 1 / 4, 20),
        ("NVIDIA A30 MIG 2g.12gb", 1 / 2, 1 / 2, 12),
    ],
)
def test_the_type_of_a_slice_is_that_part_of_its_board(model, compute, memory, gib):
    board, part = find_gpu(model.partition(" MIG")[0]), find_gpu(model)
    assert part.training_flops == pytest.approx(board.training_flops * compute)
    assert part.bandwidth == pytest.approx(board.bandwidth * memory)
    assert part.memory_bytes == gib * GIB
    assert most_memory_bytes(model) == 2 * gib * GIB
    assert find_gpu(model) is part
    assert type_name(model) != type_name(model.partition(" MIG")[0])


def test_slices_of_a_board_that_is_not_in_the_table_are_of_no_known_type():
    assert find_gpu("NVIDIA Z9000 MIG 1g.10gb") is None
    assert type_name("NVIDIA Z9000 MIG 1g.10gb") == "NVIDIA Z9000 MIG 1G.10GB"


NUMBERS = st.one_of(st.sampled_from(["0", "00", "9" * 40, "9" * 400, "9" * 5000, "\u0661"]),
                    st.integers(0, 10**6).map(str))  # fmt: skip


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_name_that_a_node_or_a_tenant_makes_up_is_no_error(size, own, of, memory):
    for name in (f"A100 {size}GB MIG {of}g.{memory}gb", f"A100 MIG {own}c.{of}g.{memory}gb"):
        found = find_gpu(name)
        assert found.training_flops > 0
        assert found.memory_bytes > 0
        assert 0 < compute_share(name) <= 1
