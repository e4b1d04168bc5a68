"""Annotations: what is read, and what is refused with field, value and what is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.contracts import names
from tandem.contracts.annotations import (
    AnnotationError,
    check_names,
    format_visible_devices,
    parse_demand,
    parse_visible_devices,
)
from tandem.contracts.resources import Demand, Optimizer, Precision


def test_nothing_said_is_whole_gpus():
    assert parse_demand({}, 2) == Demand(gpus_per_pod=2)


def test_everything_said():
    demand = parse_demand(
        {
            names.MODEL: "resnet50-v1.5",
            names.BATCH_SIZE: "32",
            names.ITERATIONS: "90000",
            names.MEMORY: "12.5Gi",
            names.UTILIZATION: "35.5",
            names.PRECISION: "bf16",
            names.OPTIMIZER: "adam",
            names.SEQUENCE_LENGTH: "512",
            names.EXCLUSIVE: "false",
            names.CHECKPOINT: "true",
            names.ACCUMULATION: "true",
            names.GANG: "team-a.run-7",
            names.GANG_SIZE: "4",
            names.REQUIRED_TOPOLOGY: "topology.kubernetes.io/zone",
            names.PREFERRED_TOPOLOGY: "rack",
            "unrelated": "x",
        },
        1,
        gang_size=9,
    )
    assert demand == Demand(
        gpus_per_pod=1,
        gang_size=4,
        model="resnet50-v1.5",
        batch_size=32,
        iterations=90000,
        declared_memory_bytes=int(12.5 * 2**30),
        declared_utilisation_percent=35.5,
        precision=Precision.BF16,
        optimizer=Optimizer.ADAM,
        sequence_length=512,
        exclusive=False,
        checkpoint=True,
        accumulation=True,
        required_topology="topology.kubernetes.io/zone",
        preferred_topology="rack",
    )


def test_the_kind_of_the_workload_says_the_size_where_the_user_does_not():
    assert parse_demand({}, 1, gang_size=8).gang_size == 8


@pytest.mark.parametrize(
    ("text", "memory_bytes"),
    [
        ("12Gi", 12 * 2**30),
        ("12G", 12 * 10**9),
        ("1.5e10", 15 * 10**9),
        ("1048576", 2**20),
        ("2000000.5", 2000001),
    ],
)
def test_memory_is_exact(text, memory_bytes):
    assert parse_demand({names.MEMORY: text}, 1).declared_memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        (names.MEMORY, "12 gigs", "such as 12Gi"),
        (names.MEMORY, "12GiB", "such as 12Gi"),
        (names.MEMORY, "12", "from 1Mi"),
        (names.MEMORY, "-1Gi", "from 1Mi"),
        (names.MEMORY, "1e99", "to 1Pi"),
        (names.BATCH_SIZE, "0", "from 1"),
        (names.BATCH_SIZE, "1_0", "whole number"),
        (names.BATCH_SIZE, "٣", "whole number"),
        (names.BATCH_SIZE, "32.0", "whole number"),
        (names.BATCH_SIZE, "1" * 300_000, "whole number"),
        (names.ITERATIONS, "", "whole number"),
        (names.UTILIZATION, "101", "from 0 to 100"),
        (names.UTILIZATION, "35%", "such as 35"),
        (names.UTILIZATION, "nan", "from 0 to 100"),
        (names.PRECISION, "fp8", "fp32, amp, bf16"),
        (names.PRECISION, "", "fp32, amp, bf16"),
        (names.OPTIMIZER, "Adam", "sgd, momentum, adam"),
        (names.SEQUENCE_LENGTH, "0", "from 1"),
        (names.SEQUENCE_LENGTH, "1048577", "to 1048576"),
        (names.EXCLUSIVE, "yes", '"true" or "false"'),
        (names.CHECKPOINT, "True", '"true" or "false"'),
        (names.ACCUMULATION, "1", '"true" or "false"'),
        (names.MODEL, "ResNet/50", "ModelProfile"),
        (names.GANG, "Team A", "lower-case"),
        (names.GANG, "team-a", names.GANG_SIZE),
        (names.GANG_SIZE, "two", "pods"),
        (names.REQUIRED_TOPOLOGY, "", "level of the cluster's topology"),
        (names.PREFERRED_TOPOLOGY, "a/b/c", "level of the cluster's topology"),
    ],
)
def test_refused_with_field_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(AnnotationError) as caught:
        parse_demand({name: value}, 1, where="spec.template.metadata.annotations")
    (error,) = caught.value.errors
    assert error.field == f"spec.template.metadata.annotations[{name}]"
    assert error.value == value
    assert allowed in error.allowed
    assert f'"{value[:20]}' in str(error)
    assert len(str(error)) < 400, "a value of any length makes a readable message"


def test_all_errors_are_reported_at_once():
    with pytest.raises(AnnotationError) as caught:
        parse_demand({names.MEMORY: "x", names.BATCH_SIZE: "y"}, 1)
    assert {error.value for error in caught.value.errors} == {"x", "y"}


def test_names_of_ours_and_misspelt_ones():
    errors = check_names(
        {
            names.VISIBLE_DEVICES: "GPU-1",
            "tandem.gpu/batchsize": "3",
            "tandem.gpu/qqq": "",
            names.MEMORY: "1Gi",
            "example.com/batchsize": "3",
        }
    )
    assert [error.field for error in errors] == [
        f"metadata.annotations[{name}]"
        for name in (names.VISIBLE_DEVICES, "tandem.gpu/batchsize", "tandem.gpu/qqq")
    ]
    assert "Tandem alone" in errors[0].allowed
    assert "did you mean tandem.gpu/batch-size" in errors[1].allowed
    assert names.MODEL in errors[2].allowed


@given(st.sampled_from(names.USER_ANNOTATIONS), st.text(max_size=40))
def test_any_text_is_either_read_or_refused(name, text):
    refused = ()
    try:
        demand = parse_demand({name: text}, 1)
    except AnnotationError as error:
        refused = error.errors
    assert bool(refused) or demand.gpus_per_pod == 1
    assert all(error.value == text for error in refused)


def test_visible_devices_there_and_back():
    assert parse_visible_devices("") == ()
    uuids = ("GPU-1", "GPU-2")
    assert parse_visible_devices(format_visible_devices(uuids)) == uuids
