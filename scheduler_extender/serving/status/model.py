"""The cluster as the page shows it, kept up to date by lines of `Changes.pieces`. No I/O.

One thread uses a `Cluster`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Any

from pydantic_core import from_json

from scheduler_extender.serving.status.objects import (
    SLOWED,
    Gpu,
    Job,
    Key,
    Node,
    Raw,
    Scope,
    job_of,
    most_runs,
    node_of,
)
from scheduler_extender.serving.status.selection import Selection

#: Selections that follow the changes: those that were used last, and lately.
_SELECTIONS = 32
_UNUSED_CHANGES = 1000
#: Models whose names are kept for what their runs are known by: the last that were seen.
_MODELS = 20_000


class Cluster:
    """All nodes and jobs.

    `revision` grows with each change that a view could show, `job_revision` with changes of jobs.
    """

    def __init__(self) -> None:
        self.version = ""
        self.revision = 0
        self.job_revision = 0
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[Key, Job] = {}
        self.runs: OrderedDict[str, Raw] = OrderedDict()
        self.quotas: list[Raw] = []
        self.deleted: dict[str, int] = {}  # pods that hold GPUs long after it, by namespace
        self.silent: dict[str, list[str]] = {}  # what does not answer: `changes.Silent`
        # Models by namespace and by what their runs are known by; of any namespace by ''.
        self._models: OrderedDict[Key, str] = OrderedDict()
        self._names: list[str] = []  # of the nodes, sorted
        self._gpus = 0
        self._slowed: dict[Key, float] = {}
        self._nodes_of: dict[Key, set[str]] = {}  # job -> nodes whose GPUs it holds
        self._selections: OrderedDict[tuple[str | None, str], Selection] = OrderedDict()
        self._used: dict[tuple[str | None, str], int] = {}  # number of the change before the use
        self._applied = 0

    def apply(self, lines: bytes) -> None:
        """Take in whole lines of `Changes.pieces`."""
        for line in lines.splitlines():
            self._take(line)
        self._applied += 1
        for name, used in list(self._used.items()):
            if self._applied - used > _UNUSED_CHANGES:
                del self._selections[name], self._used[name]

    # --- reading ------------------------------------------------------------------------------

    def all_nodes(self) -> list[Node]:
        """Return the nodes by name."""
        return [self.nodes[name] for name in self._names]

    def model_of(self, scope: Scope, namespace: str, known_by: str) -> str:
        """Return the model that runs are known by, by its name; '' where the reader sees none."""
        own = self._models.get((namespace, known_by), "")
        return own or (self._models.get(("", known_by), "") if scope.namespace is None else "")

    def selection(self, scope: Scope, namespace: str = "") -> Selection:
        """Return what a reader sees, or of it what belongs to one namespace.

        A reader that sees one namespace sees no other one, whatever it asks for.
        """
        name = (scope.namespace, "" if scope.namespace is not None else namespace)
        found = self._selections.get(name)
        if found is None:
            found = Selection(scope, name[1], self.jobs, self.nodes, self._slowed, self._nodes_of)
            self._selections[name] = found
            while len(self._selections) > _SELECTIONS:
                del self._used[self._selections.popitem(last=False)[0]]
        self._selections.move_to_end(name)
        self._used[name] = self._applied
        return found

    def gpu(self, scope: Scope, node: str, uuid: str) -> Gpu | None:
        """Return one GPU as a reader sees it; None where there is none to see."""
        return next((g for g in self.selection(scope).gpus(node) if g.uuid == uuid), None)

    def runs_of(
        self, scope: Scope, node: str = "", gpu: str = "", job: Key | None = None
    ) -> list[Raw]:
        """Return ended runs, the latest first."""
        return [
            run
            for run in reversed(self.runs.values())
            if scope.sees(run["namespace"])
            and (not node or (run["node"] == node and gpu in run["gpus"]))
            and (job is None or (run["namespace"], run["job"]) == job)
        ]

    # --- taking in ----------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        value = from_json(line)
        match value["kind"]:
            case "whole":
                self._clear()
            case "node":
                self._put_node(value["facts"]["name"], node_of(value, line, self._slowed))
            case "job":
                job = job_of(value, line)
                self._put_job(job.key, job)
            case "gone" if value["of"] == "node":
                self._put_node(value["name"], None)
            case "gone":
                self._put_job((value["namespace"], value["name"]), None)
            case "run":
                self._put_run(value)
            case "quotas":
                summary = value["quotas"], value["deleted"], value["silent"]
                if (self.quotas, self.deleted, self.silent) == summary:
                    return
                self.quotas, self.deleted, self.silent = summary
            case "end":
                self.version = value["version"]
                return
        self.revision += 1

    def _clear(self) -> None:
        self.version = ""  # until the end has come, nothing is known for certain
        self.nodes.clear()
        self.jobs.clear()
        self._names.clear()
        self._gpus = 0
        self._slowed.clear()
        self._nodes_of.clear()
        self._selections.clear()
        self._used.clear()
        self.job_revision += 1

    def _put_node(self, name: str, node: Node | None) -> None:
        before = self.nodes.pop(name, None)
        for gpu in () if before is None else before.gpus:
            self._gpus -= 1
            for holder in gpu.holders:
                self._leave(holder.job, name)
        if node is not None:
            self.nodes[name] = node
            for gpu in node.gpus:
                self._gpus += 1
                for holder in gpu.holders:
                    self._nodes_of.setdefault(holder.job, set()).add(name)
        at = bisect_left(self._names, name)
        known = self._names[at : at + 1] == [name]
        if node is not None and not known:
            insort(self._names, name)
        elif node is None and known:
            del self._names[at]
        for selection in self._selections.values():
            selection.node_changed(name)

    def _leave(self, job: Key, node: str) -> None:
        nodes = self._nodes_of.get(job)
        if nodes is not None:
            nodes.discard(node)
            if not nodes:
                del self._nodes_of[job]

    def _put_job(self, key: Key, job: Job | None) -> None:
        before = self.jobs.pop(key, None)
        if job is not None:
            self.jobs[key] = job
            if job.known_by and job.model:
                name = f"{job.model} (batch {job.batch_size})" if job.batch_size else job.model
                for namespace in (job.namespace, ""):
                    self._models[namespace, job.known_by] = name
                while len(self._models) > _MODELS:
                    self._models.popitem(last=False)
        if before is job:
            return  # a job that is gone, and was never known
        self.job_revision += 1
        for selection in self._selections.values():
            if selection.namespace in (None, key[0]):
                selection.job_changed(before, job)
        slowdown = None if job is None else job.slowdown
        was_slowed = key in self._slowed
        is_slowed = job is not None and job.phase == "Running" and (slowdown or 0.0) >= SLOWED
        if is_slowed:
            self._slowed[key] = slowdown or 0.0
        else:
            self._slowed.pop(key, None)
        known = (before is None) == (job is None)
        if known and before is not None and before.slowdown == slowdown:
            return
        for name in self._nodes_of.get(key, ()):
            node = self.nodes[name]
            if is_slowed != was_slowed:
                for gpu in node.gpus:
                    gpu.set_state(self._slowed)
                node.count()
            for selection in self._selections.values():
                selection.node_changed(name)

    def _put_run(self, run: dict[str, Any]) -> None:
        self.runs[run["uid"]] = run
        while len(self.runs) > most_runs(self._gpus):
            self.runs.popitem(last=False)
