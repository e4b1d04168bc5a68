"""Grafana's dashboards, made of the list of panels in dashboards.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: To the other dashboards, for the same time and choices.
_LINKS = {
    "type": "dashboards",
    "title": "Tandem",
    "tags": ["tandem"],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
}


def dashboards() -> Iterator[tuple[str, str]]:
    """Yield the name of each dashboard with its JSON."""
    for name, given in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items():
        document = {
            "uid": f"tandem-{name}",
            "title": given["title"],
            "tags": ["tandem"],
            "schemaVersion": 39,
            "time": {"from": "now-6h", "to": "now"},
            "refresh": "1m",
            "links": [_LINKS],
            "templating": {
                "list": [
                    {"name": "datasource", "type": "datasource", "query": "prometheus"},
                    *(_variable(*each) for each in given.get("variables", {}).items()),
                ]
            },
            "panels": [_panel(index, panel) for index, panel in enumerate(given["panels"])],
        }
        yield name, json.dumps(document, indent=1) + "\n"


def _variable(name: str, query: str) -> dict[str, Any]:
    """Return a choice of values of a label, all of them at first."""
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "sort": 1,
    }


def _panel(index: int, panel: dict[str, Any]) -> dict[str, Any]:
    row, column = divmod(index, _COLUMNS)
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel["title"],
        "description": panel["description"],
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel["queries"].items())
        ],
    }
