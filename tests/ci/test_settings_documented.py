"""Each setting of a service stands in the page that documents its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from node_agent.config import AgentSettings
from predictor.service.config import PredictorConfig
from scheduler_extender.config import ExtenderConfig
from tandem.policy.catalog import Profile

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    AgentSettings: ("node-agent",),
    ExtenderConfig: ("extender", "queueing", "learning"),
    PredictorConfig: ("predictor",),
}


def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the dotted path of each setting; a profile has a page of its own."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Profile:
            yield from keys(inner, f"{path}{name}.")
        else:
            yield path + name


@pytest.mark.parametrize("model", PAGES)
def test_every_setting_is_documented(model: type[BaseModel]) -> None:
    text = "\n".join((DOCS / f"{page}.md").read_text() for page in PAGES[model])
    assert [path for path in keys(model) if path.rpartition(".")[2] not in text] == []
