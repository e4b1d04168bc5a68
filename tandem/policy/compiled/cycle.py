"""A cycle of `share` in compiled code: the columns of a board as pointers, and what came out."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from tandem.policy.board import Board
from tandem.policy.compiled.library import library
from tandem.policy.equations.worth import bins_of
from tandem.policy.pipeline import Pipeline
from tandem.policy.ports import Constraint, Dispatch, Scorer
from tandem.policy.units import Bools, Ints

_ANY = 1 << 40  # of jobs on a GPU: no bound
_UNBOUNDED = {
    "at_most": _ANY,
    "max_collision_probability": np.inf,
    "max_utilisation": np.inf,
    "max_interference": np.inf,
}
_NOTHING_NEW, _UNSUPPORTED = 1, -1  # answers of share.c
_ROOM = 16  # actions kept for one cycle, in workers of the whole cluster

#: Fields of `Cycle` in columns.h, and where a column has another name there: of GPUs, of jobs, of
#: their loads, and of the board.
_GPU_COLUMNS = dict.fromkeys((
    "node", "memory_capacity_gib", "memory_base_gib", "memory_peak_extra_gib",
    "memory_peak_sum_gib", "none_in_peak", "one_in_peak", "peaks_measured", "guarded",
    "gpu_utilisation", "shares", "exclusive", "sliced", "healthy", "fresh", "over_commit",
    "compute", "residents", "resident_class", "resident_slowdown", "place",
)) | {"count": "jobs"}  # fmt: skip
_ARRAYS = dict.fromkeys((
    "arrived_s", "running", "since_s", "attained_at_since", "service_at_since", "queue",
)) | {"size": "gpus"}  # fmt: skip
_LOADS = dict.fromkeys((
    "base_gib", "extra_gib", "peak_probability", "peaks_may_meet", "spread_slowdown", "busy_share",
    "spans", "checkpointable", "known", "demand", "table",
)) | {
    "utilisation": "gpu_utilisation", "never_shares": "exclusive", "wanted": "gpus",
    "per_pod": "gpus_per_pod", "job_class": "interference_class",
}  # fmt: skip
_BOARD = (
    "predicted_speed", "spread_speed", "on_gpus", "changed", "untried", "seen_rate", "seen_queue",
    "rate",
)  # fmt: skip
#: Columns that a cycle has only at times, with their count; empty until then.
_AT_TIMES = ("stale", "pinned", "history_gpus", "history_ended", "history_exposure_s")
#: What is read of the dispatch; NaN for none.
_PARAMETERS = (
    "scale_s", "prior_jobs", "size_prior_jobs", "novel", "aging", "gang_weight",
    "preempt_factor", "turn_share", "move_cost_s", "move_below_speed", "min_speed", "min_gain",
    "equal_worth",
)  # fmt: skip
_FLAGS = {
    "shares_gpus": "share",
    "locality": "locality",
    "best_pair": "best_pair",
    "demands_tried": "demands_tried",
    "learns": "learn",
}
_DTYPES = {"i64": np.int64, "u8": np.bool_, "double": np.float64}


@cache
def _layout(lib: ctypes.CDLL) -> tuple[type[ctypes.Structure], dict[str, Any]]:
    """Return `Cycle` as the library has it, and the types of the columns that it points to."""
    fields: list[tuple[str, Any]] = []
    columns: dict[str, Any] = {}
    for field in lib.tandem_cycle_fields().decode().rstrip(";").split(";"):
        *kind, name = field.removeprefix("const ").split()
        if kind[1:] == ["*"]:
            fields.append((name, ctypes.c_void_p))
            columns[name] = _DTYPES[kind[0]]
        else:
            fields.append((name, ctypes.c_double if kind == ["double"] else ctypes.c_int64))
    # Without slots, a name that is no field would be set, and nothing would read it.
    members = {"__slots__": (), "_fields_": fields}
    return type("Cycle", (ctypes.Structure,), members), columns


class CompiledCycle:
    """The compiled cycle of one board.

    It keeps the columns that it points to alive. Those of GPUs and jobs are changed in place; the
    tables of predictions and the pool of rows are pointed to anew where they were replaced.
    """

    def __init__(self, board: Board, pipeline: Pipeline, lib: ctypes.CDLL) -> None:
        self._lib = lib
        self._pipeline = pipeline
        self._held: dict[str, np.ndarray[Any, Any]] = {}
        structure, self._dtypes = _layout(lib)
        self._at: Any = structure()  # fields are known when the library is loaded
        self._scratch: int | None = None
        self._dispatch: Dispatch | None = None
        self._checked = False
        gpus, jobs = len(board.gpus), len(board.jobs)
        nodes = int(board.gpus.node.max(initial=-1)) + 1
        at = self._at
        at.gpus, at.slots = board.gpus.residents.shape
        at.jobs, at.nodes = jobs, nodes
        at.widest_node = int(np.bincount(board.gpus.node[~board.gpus.sliced]).max(initial=1))
        for name in _AT_TIMES:
            self._point(name, np.zeros(0, dtype=self._dtypes[name]))
        self._touched = np.zeros(gpus, dtype=np.bool_)
        self._actions = np.zeros(_ROOM * ((at.slots + 1) * gpus + jobs + 4), dtype=np.int64)
        self._point("actions", self._actions)
        self._point("touched", self._touched)
        at.actions_room = len(self._actions)
        for name, value in (_UNBOUNDED | dict(_bounds_of(pipeline) or {})).items():
            setattr(at, name, value)
        self._say_where(board)
        self._point_to(board)
        self._scratch = lib.tandem_new(jobs, gpus, nodes)
        if not self._scratch:
            raise MemoryError("no memory for a compiled cycle")

    def __del__(self) -> None:
        if self._scratch:
            self._lib.tandem_free(self._scratch)

    def is_of(self, pipeline: Pipeline) -> bool:
        """Say whether it decides with the constraints of `pipeline`."""
        return self._pipeline is pipeline

    def share(self, dispatch: Dispatch, board: Board, ranked: Ints) -> bool:
        """Let `dispatch` act on the board; False, and nothing is changed, where it cannot."""
        at = self._at
        if self._dispatch is not dispatch:
            self._set(dispatch)
        loads = board.loads
        self._point("own", loads.own)
        self._point("caused", loads.caused)
        at.classes = loads.own.shape[1]
        self._point("pool", board.pool.rows)
        if at.learns:
            runs = board.history.runs(at.scale_s)
            at.history_sizes = len(runs.gpus)
            self._point("history_gpus", runs.gpus)
            self._point("history_ended", runs.ended)
            self._point("history_exposure_s", runs.exposure_s)
        at.now_s = board.now_s
        self._point("ranked", np.ascontiguousarray(ranked))
        at.ranked_count = len(ranked)
        at.stale_count, at.pinned_count = len(board.stale), len(board.pinned)
        if board.stale:
            stale = np.fromiter(board.stale, dtype=np.int64, count=len(board.stale))
            self._point("stale", stale)
        if board.pinned:
            pinned = np.fromiter(board.pinned, dtype=np.int64, count=len(board.pinned))
            self._point("pinned", pinned)
        if not self._checked:
            self._check()
        answer = self._lib.tandem_share(ctypes.byref(at), self._scratch)
        if answer == _NOTHING_NEW:
            return True
        if answer == _UNSUPPORTED:
            return False
        if answer:
            raise MemoryError("no memory for a compiled cycle")
        board.stale.clear()
        if at.actions_used:
            rows = np.flatnonzero(self._touched)
            board.adopt(self._actions[: at.actions_used].tolist(), rows)
        return True

    def _set(self, dispatch: Dispatch) -> None:
        """Write the parameters of the dispatch."""
        at, self._dispatch = self._at, dispatch
        for name in _PARAMETERS:
            value = getattr(dispatch, name)
            setattr(at, name, np.nan if value is None else value)
        for name, of in _FLAGS.items():
            setattr(at, name, getattr(dispatch, of))
        at.history_sizes = 0
        bounds_s, width_s, tail = bins_of(at.scale_s)
        self._point("bounds_s", bounds_s)
        self._point("width_s", width_s)
        self._point("tail", tail)

    def _point_to(self, board: Board) -> None:
        for name, of in _GPU_COLUMNS.items():
            self._point(name, board.columns[of or name])
        for name, of in _ARRAYS.items():
            self._point(name, getattr(board.arrays, of or name))
        for name, of in _LOADS.items():
            self._point(name, getattr(board.loads, of or name))
        for name in _BOARD:
            self._point(name, getattr(board, name))
        self._point("pool_at", board.pool.at)
        self._point("held", board.pool.held)

    def _point(self, name: str, column: np.ndarray[Any, Any]) -> None:
        if self._held.get(name) is column:
            return
        if column.dtype != self._dtypes[name] or not column.flags.c_contiguous:
            raise TypeError(f"column {name} is {column.dtype}, or not contiguous")
        self._held[name] = column
        setattr(self._at, name, column.ctypes.data)

    def _check(self) -> None:
        """Raise where a column of the library is set to nothing; once, as none is ever unset."""
        unset = self._dtypes.keys() - self._held.keys()
        if unset:
            raise RuntimeError(f"columns of the compiled cycle are not set: {sorted(unset)}")
        self._checked = True

    def _say_where(self, board: Board) -> None:
        """Write for each job the nodes where it may be, and the residents that it must avoid."""
        none = np.full(len(board.jobs), -1, dtype=np.int64)
        nodes, apart = self._pipeline.elsewhere()
        self._number("mask_of", board.loads.where, nodes, none)
        limits = self._pipeline.limits()
        self._number("limit_of", board.loads.where, limits, none)
        self._number("apart_of", board.loads.where, apart, none)
        # Masks may have nodes without GPUs, which no row of the board names.
        masks = [np.asarray(mask[: self._at.nodes], dtype=np.bool_) for mask in nodes.values()]
        self._point("masks", np.stack(masks) if masks else np.zeros((0, 0), np.bool_))
        most = [np.asarray(limit[: self._at.nodes], dtype=np.int64) for limit in limits.values()]
        self._point("limits", np.stack(most) if most else np.zeros((0, 0), np.int64))
        sets = [np.asarray(handles, dtype=np.int64) for handles in apart.values()]
        ends = np.cumsum([0, *(len(each) for each in sets)], dtype=np.int64)
        self._point("apart_at", ends)
        self._point("apart", np.concatenate([np.zeros(0, np.int64), *sets]))

    def _number(
        self, name: str, where: Ints, known: Mapping[int, Bools | Ints], none: Ints
    ) -> None:
        column = none.copy()
        for number, place in enumerate(known):
            column[where == place] = number
        self._point(name, column)


def _bounds_of(pipeline: Pipeline) -> dict[str, float] | None:
    """Return the fields that constraints and scorers set; None where one has no compiled form.

    Of two upper bounds on the same, the lower one holds. Weights of scorers are shares of their
    sum.
    """
    found: dict[str, float] = {}
    total = sum(scorer.weight for scorer in pipeline.scorers)
    policies: list[Constraint | Scorer] = [*pipeline.constraints, *pipeline.scorers]
    for policy in policies:
        fields = policy.compiled()
        if fields is None or (found.keys() & fields.keys()) - _UNBOUNDED.keys():
            return None
        lower = {key: min(found[key], fields[key]) for key in found.keys() & fields.keys()}
        found |= {**fields, **lower}
    for weight in ("horus_weight", "in_use_weight"):
        if weight in found:
            found[weight] /= total
    return found


def compiled_cycle(board: Board, pipeline: Pipeline) -> CompiledCycle | None:
    """Return the compiled cycle of a board; None without library, or for other constraints."""
    known = board.compiled
    if isinstance(known, CompiledCycle) and known.is_of(pipeline):
        return known
    lib = library()
    if lib is None or _bounds_of(pipeline) is None:
        return None
    board.compiled = made = CompiledCycle(board, pipeline, lib)
    return made
