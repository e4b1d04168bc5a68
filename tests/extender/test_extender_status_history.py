"""The list of jobs that have ended, and the hints at the terms of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from extender_builders import NOW, gpu_job, gpu_node, load
from test_extender_status import ML, OPERATOR, Site, slowdown, view

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.serving.status import assets
from scheduler_extender.serving.status.objects import Scope

VGG = f"{'a' * 64}@32"  # by what runs of its graph are known, batch size included
DOCS = Path(__file__).parents[2] / "docs"


def ended(site: Site, name: str, namespace: str, phase: str, **more: Any) -> None:
    made = gpu_job(f"job-{name}", namespace=namespace, job_load=load(10, 4, 0.2))
    made["spec"]["demand"]["model"] = f"{name}-model"
    made["status"] |= {
        "phase": phase,
        "queuedAt": rfc3339(NOW - 900),
        "startedAt": rfc3339(NOW - 600),
        "finishedAt": rfc3339(NOW - 60),
        "attainedGpuSeconds": 540.0,
        **more,
    }
    site.state.upsert("gpujobs", made)


@pytest.fixture
def site() -> Site:
    found = Site()
    found.state.upsert("gpunodes", gpu_node("n0", "a"))
    ended(found, "done", "ml", "Completed", observed=slowdown(0.2, VGG))
    ended(found, "vgg", "other", "Failed", observed={"at": rfc3339(NOW), "kind": VGG})
    found.run("runs", "n0", "a")
    found.follow()
    return found


@pytest.mark.parametrize(
    ("scope", "neighbour"),
    [
        (OPERATOR, {"kind": VGG, "model": "vgg-model"}),
        (ML, {"kind": "", "model": None}),
        (Scope("ml"), {"kind": "", "model": None}),
    ],
)
def test_an_ended_job_says_how_it_went(site: Site, scope: Scope, neighbour: dict) -> None:
    """A tenant does not see which model of another namespace was next to its job."""
    found = view(site.cluster, "jobs", scope=scope, phase="Completed")
    (row,) = found["rows"]
    assert row["name"] == "job-done"
    assert (row["queuedAt"], row["startedAt"], row["finishedAt"]) == (
        rfc3339(NOW - 900), rfc3339(NOW - 600), rfc3339(NOW - 60),
    )  # fmt: skip
    assert row["attainedGpuSeconds"] == 540.0
    assert row["slowdown"] == 0.2
    assert row["neighbours"] == [{**neighbour, "slowdown": 0.2}]


def test_what_was_not_measured_is_absent(site: Site) -> None:
    (row,) = view(site.cluster, "jobs", phase="Failed")["rows"]
    assert (row["slowdown"], row["neighbours"]) == (None, [])
    (running,) = view(site.cluster, "jobs", phase="Running")["rows"]
    assert "neighbours" not in running


SCRIPTS = {path.name: path.read_text() for path in assets.FOLDER.glob("*.js")}
#: Of columns and facts: what says all about itself, or is the name of an object or of a field.
PLAIN = {
    "Job", "Jobs", "GPU", "GPUs", "GPU type", "Type", "Node", "Namespace", "Running", "Waiting",
    "Where", "Why", "Time", "Ended", "Temp.", "Memory", "Pod", "Message", "Object", "Reason",
    "Case", "Count", "Last seen", "Batch", "Iterations", "From", "Next to", "Runs",
    "measured", "predicted",
}  # fmt: skip
SHOWN = "".join(SCRIPTS[f"{name}.js"] for name in ("lists", "details", "past", "whatif"))
TERM = re.compile(r'^  "([^"]+)": \["([^"]+)", "([\w-]+\.md)"\],$', re.MULTILINE)


def test_each_column_has_a_hint_or_says_all_about_itself() -> None:
    terms = {name for name, _, _ in TERM.findall(SCRIPTS["terms.js"])}
    used = set(re.findall(r'name: "([^"]+)"', SHOWN))
    assert used - terms - PLAIN == set()
    assert not terms & PLAIN


def test_each_term_is_on_the_page_and_its_docs_exist() -> None:
    found = TERM.findall(SCRIPTS["terms.js"])
    assert len(found) > 30
    for name, means, page in found:
        assert f'"{name}"' in SHOWN, name
        assert means.endswith("."), name
        assert (DOCS / page).exists(), page
