"""Edges of the shape of pods that the cases of admission do not come to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from scheduler_extender.admission.podshape import PodShape


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
