"""Which GPUs a node is known to have: what is a change, and what is not."""

import pytest

from tandem.contracts.inventory import (
    change_in_words,
    changes,
    format_inventory,
    inventory_of,
    parse_inventory,
)
from tandem.contracts.resources import GPU

GIB = 1 << 30


def gpus(*uuids, model="NVIDIA A100", gib=80.0):
    return [
        GPU(uuid=uuid, index=index, model=model, memory_bytes=int(gib * GIB))
        for index, uuid in enumerate(uuids)
    ]


KNOWN = parse_inventory(format_inventory(inventory_of(gpus("a", "b"))))


def changed(*reported):
    return dict(changes(KNOWN, inventory_of(reported)))


def test_what_is_noted_is_read_again():
    assert KNOWN == {"a": ("NVIDIA A100", 80 * GIB), "b": ("NVIDIA A100", 80 * GIB)}


def test_a_gpu_that_is_missing_or_back_is_no_change():
    assert changed(*gpus("a")) == {}
    assert changed() == {}
    assert changed(*gpus("a", "b")) == {}


def test_memory_varies_with_driver_and_ecc_and_no_more():
    assert changed(*gpus("a", gib=75)) == {}
    assert changed(*gpus("a", gib=85.3)) == {}
    assert changed(*gpus("a", gib=160)) == {"a": "has 163,840 MiB and had 81,920"}


def test_new_gpus_and_other_models_are_named():
    found = changed(*gpus("a", model="NVIDIA H200"), *gpus("c"))
    assert found == {"a": "is 'NVIDIA H200' and was 'NVIDIA A100'", "c": "is new"}
    words = change_in_words((f"GPU-{number}", "is new") for number in range(64))
    assert words == ("GPU-0 is new, GPU-1 is new, GPU-2 is new, GPU-3 is new, and 60 more")


@pytest.mark.parametrize("text", ["", "[]", "{", "7", '{"a":1}', '{"a":["m","x"]}', "[" * 5000])
def test_an_annotation_that_cannot_be_read_knows_no_gpu(text):
    assert parse_inventory(text) == {}
