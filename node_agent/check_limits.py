"""Tests whether frameworks keep to a memory limit: `python -m node_agent.check --limits`.

Each try is a process of its own on the first GPU, which no other process may use then. It asks for
a twentieth of the GPU's memory, and then for a tenth more, under a limit of a tenth: the first is
to be given, the second to be refused. docs/limits.md has what is known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import node_agent
from node_agent.check_report import Report
from node_agent.nvml import Nvml, NvmlGoneError
from tandem.contracts import names
from tandem.progress import says_out_of_memory

_FRACTION = "0.1"
_FIRST, _SECOND = 0.05, 0.1  # of the GPU's memory: 4 and 8 GiB of an H100's 80
_GIB = 1 << 30
_TRY_S = 300.0
_ROOT = Path(node_agent.__file__).parents[1]
_PYTORCH = f"per_process_memory_fraction:{_FRACTION}"
_XLA = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_HELPER = {names.MEMORY_FRACTION_ENV: _FRACTION}


@dataclass(frozen=True, slots=True)
class Try:
    """A framework (`check_memory`), how it is limited, and whether that is to hold."""

    name: str
    means: str
    environment: dict[str, str] = field(default_factory=dict)
    limited: bool = True


TRIES = (
    Try("torch", "no limit", limited=False),
    Try("torch", names.PYTORCH_ALLOC_CONF_ENV, {names.PYTORCH_ALLOC_CONF_ENV: _PYTORCH}),
    Try("torch", "PYTORCH_CUDA_ALLOC_CONF", {"PYTORCH_CUDA_ALLOC_CONF": _PYTORCH}),
    Try("torch+progress", "tandem.progress", _HELPER),
    Try("jax", _XLA, {_XLA: _FRACTION}),
    Try(
        "jax",
        f"{_XLA}, no preallocation",
        {_XLA: _FRACTION, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    ),
    Try(
        "tensorflow+progress",
        "tandem.progress",
        {**_HELPER, "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
)
#: What a shell may have set; each try has its own alone.
_CLEARED = {name for each in TRIES for name in each.environment} | {
    "PYTORCH_HIP_ALLOC_CONF",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "CUDA_VISIBLE_DEVICES",
}


@dataclass(slots=True)
class Outcome:
    """The result of a try: its lines, its errors and its exit code."""

    lines: list[dict[str, Any]]
    error: str
    code: int

    @property
    def given(self) -> int:
        """The number of allocations that succeeded."""
        return sum("given" in line for line in self.lines)

    @property
    def refused(self) -> bool:
        """True where the framework reported an out-of-memory error."""
        return self.code != 0 and says_out_of_memory(self.error)

    def said(self, key: str) -> str:
        """Return what the process said of something; "" where it did not come so far."""
        return next((str(line[key]) for line in self.lines if key in line), "")

    def words(self, sizes: Sequence[int]) -> str:
        """Say what was given, and how it ended."""
        said = [
            f"{size / _GIB:.1f} GiB{' more' if number else ''}"
            f" {'given' if number < self.given else 'refused'}"
            for number, size in enumerate(sizes[: self.given + self.refused])
        ]
        if self.code and not self.refused:
            said.append(f"ended by {self.error.strip().splitlines()[-1:] or self.code}")
        return ", ".join(said)


def run(folder: Path, python: str = sys.executable) -> bool:
    """Try all with the frameworks of an interpreter, write the report, return whether all held."""
    report = Report()
    total = _memory_of_the_first_gpu(report)
    report.found("a GPU is found", f"{total / _GIB:.1f} GiB", "1 or more", total > 0)
    tried = 0
    for each in TRIES if total else ():
        tried += _try(each, total, python, report)
    if total:
        report.found("frameworks that are installed", tried, "a try or more", tried > 0)
    title, command = "Limits of GPU memory on a real driver", "python -m node_agent.check --limits"
    return report.write(folder, "limits-check", title, command)


def _memory_of_the_first_gpu(report: Report) -> int:
    nvml = Nvml()
    try:
        gpus = nvml.open()
        memory = gpus[0].memory() if gpus else None
        report.facts |= {"driver": nvml.driver_version, "gpu": gpus[0].model if gpus else None}
    except NvmlGoneError as error:
        report.facts["nvml"] = str(error)
        memory = None
    finally:
        nvml.close()
    return memory.total if memory else 0


def _try(each: Try, total: int, python: str, report: Report) -> int:
    """Note what became of a try; return 0 where its framework is not installed."""
    sizes = [int(share * total) for share in (_FIRST, _SECOND)]
    outcome = _outcome(each, sizes, python)
    if outcome.said("absent"):
        absent = report.facts.setdefault("not installed", [])
        absent += [outcome.said("absent")] * (outcome.said("absent") not in absent)
        return 0
    second = "refused" if each.limited else "given"
    report.found(
        f"{outcome.said('framework') or each.name}: {each.means}",
        f"{outcome.words(sizes)}; it says {outcome.said('says') or 'nothing'}",
        f"{sizes[0] / _GIB:.1f} GiB given, {sizes[1] / _GIB:.1f} GiB more {second}",
        outcome.given == (1 if each.limited else 2) and outcome.refused == each.limited,
    )
    return 1


def _outcome(each: Try, sizes: list[int], python: str) -> Outcome:
    environment = {name: value for name, value in os.environ.items() if name not in _CLEARED}
    path = filter(None, (str(_ROOT), environment.get("PYTHONPATH")))
    environment |= {"PYTHONPATH": os.pathsep.join(path), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment |= each.environment
    command = [python, "-m", "node_agent.check_memory", each.name, *map(str, sizes)]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome([], f"it took more than {_TRY_S:.0f} s", 1)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return Outcome(lines, ended.stderr, ended.returncode)
