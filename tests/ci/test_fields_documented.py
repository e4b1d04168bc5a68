"""docs/security.md has a line for every field that a tenant, a node or an agent writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from pydantic import Field

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "helm"))

import fields  # noqa: E402 - found by the line above

from tandem.contracts import crds  # noqa: E402 - as above
from tandem.contracts.resources import GPUNodeStatus  # noqa: E402 - as above


def test_each_field_has_its_words_and_the_page_has_them() -> None:
    assert fields.missing() == []
    assert fields.PAGE.read_text() == fields.page(), "run make generate"


def test_every_field_of_the_definitions_has_a_bound() -> None:
    unbounded = [
        (part, field, bound)
        for part, known in fields.fields().items()
        for field, bound in known.items()
        if "bound" in bound
    ]
    assert unbounded == []


def test_a_field_without_words_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class More(GPUNodeStatus):
        """With a field that came since."""

        mood: Annotated[str, Field(max_length=8)] = ""

    changed = [
        crds.Definition(**{s: getattr(d, s) for s in d.__slots__} | {"status": More})
        if d.kind == "GPUNode"
        else d
        for d in crds.DEFINITIONS
    ]
    monkeypatch.setattr(crds, "DEFINITIONS", changed)
    assert fields.missing() == ["GPUNode.status.mood is missing"]
    words = yaml.safe_load(fields.WORDS.read_text())
    words["GPUNode"][0]["fields"] = ["status.agentVersion", "status.nothing"]
    monkeypatch.setattr(fields, "WORDS", tmp_path / "fields.yaml")
    fields.WORDS.write_text(yaml.safe_dump(words))
    assert fields.missing() == [
        "GPUNode: status.nothing names no field",
        "GPUNode.status.driverVersion is missing",
        "GPUNode.status.mood is missing",
    ]
