"""Edges of the shape of pods that the cases of admission do not come to."""

from __future__ import annotations

from typing import Any

import pytest
from admission_cases import ask, pod
from pydantic import ValidationError

from scheduler_extender.admission.podshape import PodShape
from tandem.contracts.quantity import parse_quantity


def shape(quantity: Any) -> PodShape:
    container = {"name": "c", "resources": {"limits": {"tandem.gpu/gpu": quantity}}}
    return PodShape.model_validate({"spec": {"containers": [container]}})


@pytest.mark.parametrize("quantity", ["1", 1, 1.0])
def test_a_quantity_is_a_text_or_a_number(quantity: Any) -> None:
    assert shape(quantity).spec.containers[0].resources.limits["tandem.gpu/gpu"] == str(quantity)


@pytest.mark.parametrize("quantity", [["1"], {"a": "1"}])
def test_a_quantity_of_another_kind_is_refused(quantity: Any) -> None:
    with pytest.raises(ValidationError):
        shape(quantity)


@pytest.mark.parametrize("name", [[], {}, 1, None])
def test_a_variable_whose_name_is_no_text_is_refused_and_ends_nothing(name: Any) -> None:
    gpus = {"limits": {"tandem.gpu/gpu": "1"}}
    verdict = ask(pod({"name": "c", "resources": gpus, "env": [{"name": name}]}))
    assert [error.field for error in verdict.errors] == ["spec.containers.0.env.0"]


@pytest.mark.parametrize("text", ["١٢Gi", "1٢", "٥e3", "1.٥", "²"])
def test_digits_of_other_scripts_are_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)
    assert ask(pod(annotations={"tandem.gpu/memory": text})).errors


def test_a_truth_value_is_no_quantity_whatever_was_read_before() -> None:
    assert parse_quantity(1) == 1
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(True)
