"""The node over time: reads every GPU when its turn comes, survives whatever NVML does.

`tick` is called often and reads what is due; `status` says what is known. Times are seconds of
one monotonic clock that the caller reads, so that tests move it by hand.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from node_agent import canary, guard
from node_agent.attribution import Attribution
from node_agent.board import Board
from node_agent.config import AgentSettings
from node_agent.handover import ENVIRONMENT, Handed, HandOver
from node_agent.nvml import Gpu, GpuLostError, Nvml, NvmlGoneError
from node_agent.outofmemory import FULL, OutOfMemoryLog, unix_time
from node_agent.places import PCI_DEVICES, UNKNOWN_PLACE, Place, find_places
from node_agent.pods import PodDirectory, PodInfo
from node_agent.progress import Pace
from node_agent.unified import system_bytes
from tandem.contracts.resources import (
    GPU,
    Condition,
    EvictionRequest,
    GPUNodeStatus,
    Health,
    MemorySource,
    Slice,
)
from tandem.contracts.values import MAX_GPU_BYTES

log = logging.getLogger(__name__)

NVML_CONDITION = "NvmlAvailable"
READABLE_CONDITION = "AllGpusReadable"
ASSIGNMENT_CONDITION = "AssignmentHonoured"
VARIABLE_CONDITION = "VariableHonoured"
WAY_CONDITION = "HandOverKnown"

try:
    VERSION = version("tandem-gpu")
except PackageNotFoundError:  # from a source tree that is not installed
    VERSION = ""

#: NVML that is gone is tried again this often.
RETRY_S = 5.0
#: NVML that is gone for less quarantines nothing: a driver's hiccup is no trouble of the GPUs.
GONE_GRACE_S = 10.0


class Monitor:
    """Boards by UUID, and the session with NVML that reads them.

    A GPU that was known once stays in the report, quarantined while it cannot be read, until
    another takes its place.
    `paces` is how fast each pod goes by its UID, as the pods tell; `requests` is by pod UID.
    """

    def __init__(
        self,
        settings: AgentSettings,
        nvml: Nvml | None = None,
        pods: PodDirectory | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        self.settings = settings
        #: By which way the node's GPUs are handed over.
        self.hand_over = hand_over or HandOver(_set_way(settings))
        self.nvml = nvml or Nvml()
        self.boards: dict[str, Board] = {}
        self.paces: dict[str, Pace] = {}
        self.requests: dict[str, EvictionRequest] = {}
        #: How often a GPU became nearly full, by whether a pod was found that had outgrown.
        self.nearly_full: Counter[str] = Counter()
        self.out_of_memory = OutOfMemoryLog()
        #: Faults of this agent at what a GPU has answered, by the type of error.
        self.faults: Counter[str] = Counter()
        self._canary = canary.verdict(settings.canary) if settings.canary else None
        if self._canary:
            log.error("%s", self._canary)
        self._attribution = Attribution(settings.proc)
        self._pods = pods
        self._open = False
        self._gone = ""
        self._gone_since_s: float | None = None
        self._full_at_s = float("-inf")
        self._opened_at_s = float("-inf")
        self._full_gpus: set[str] = set()
        self._conditions: dict[str, Condition] = {}

    def remember(self, report: GPUNodeStatus, now_s: float) -> None:
        """Take an earlier report: its GPUs exist, whether NVML can be read now or not."""
        self.hand_over.remember(report)
        self.out_of_memory.remember(report.out_of_memory, now_s)
        for gpu in report.gpus:
            size, source = gpu.memory_bytes or None, gpu.memory_source
            board = Board(
                gpu.uuid, gpu.index, gpu.model, size, self.settings, source, mig_slice=gpu.slice
            )
            board.place = Place(None, gpu.numa_node, gpu.nvlink_domain)
            self.boards.setdefault(gpu.uuid, board)

    def close(self) -> None:
        """End the session with NVML."""
        self.nvml.close()
        self._open = False

    def tick(self, now_s: float, stamp: str) -> None:
        """Read what is due at `now_s`; `stamp` is the same moment as RFC 3339."""
        full = now_s - self._full_at_s >= self.settings.interval_s
        try:
            if full and self._open and self.nvml.slices_changed():
                log.info("slices changed")
                self._open, self._opened_at_s = False, float("-inf")
            self._reopen(now_s)
            if not self._open:
                return
            # Memory of all GPUs first: the rest takes longer, and the time of a change counts.
            for board in self.boards.values():
                self._read_memory(board, now_s, full=full)
                if board.fullness() >= FULL:
                    board.full.note(unix_time(stamp), board.guarded(self._pods))
            if full:
                placed = self._placed()
                for board in self.boards.values():
                    self._read_rest(board, now_s, placed.get(board.uuid, ()))
                self._full_at_s = now_s
                self._take_xids(now_s)
                self._attribution.keep_only(
                    set().union(*(board.pids() for board in self.boards.values()))
                )
        except NvmlGoneError as error:
            self._lose_nvml(now_s, str(error))
        if full and self._pods:
            self._pods.look_for(self._unsettled(self._pods))
        self._guard(stamp)
        if full:
            for board in self.boards.values():
                known = {uid: self._pods.find(uid) if self._pods else None for uid in board.tenants}
                self.out_of_memory.look(now_s, board.uuid, board.full, known)

    def status(self, now_s: float, stamp: str) -> GPUNodeStatus:
        """Return the report as of now."""
        self._condition(NVML_CONDITION, stamp, self._gone, "Available", "Gone")
        unreadable = dict(self.nvml.unreadable)
        for board in self.boards.values():
            if board.memory_bytes is None and board.memory_source is None:
                unreadable[board.index] = "the size of its memory cannot be read"
        trouble = "; ".join(f"GPU {index}: {why}" for index, why in sorted(unreadable.items()))
        self._condition(READABLE_CONDITION, stamp, trouble, "Readable", "Unreadable")
        boards = sorted(self.boards.values(), key=lambda board: board.order)
        misplaced = [(pod, board) for board in boards for pod in board.misplaced(self._pods)]
        trouble = "; ".join(f"{pod} runs on {board.uuid}" for pod, board in misplaced[:3])
        if trouble:
            trouble += ": the container toolkit does not honour the assignment of GPUs"
        self._condition(ASSIGNMENT_CONDITION, stamp, trouble, "Honoured", "NotHonoured")
        # Who sees no GPU with `all` cannot say whether `void` makes a difference.
        if self._canary is not None and (self._canary or self.boards):
            self._condition(VARIABLE_CONDITION, stamp, self._canary, "Honoured", "NotHonoured")
        if self.hand_over.trouble is not None:
            trouble = self.hand_over.trouble
            self._condition(WAY_CONDITION, stamp, trouble, "Known", "Unknown")
        handed = self.hand_over.look(self.boards, now_s, stamp)
        return GPUNodeStatus(
            agent_version=VERSION,
            driver_version=self.nvml.driver_version or "",
            observed_at=stamp,
            gpus=[self._report(board, now_s, handed[board.uuid]) for board in boards],
            eviction_requests=sorted(self.requests.values(), key=lambda r: (r.gpu, r.uid)),
            out_of_memory=self.out_of_memory.latest(now_s),
            conditions=list(self._conditions.values()),
        )

    def gone_for_s(self, now_s: float) -> float:
        """Return for how long NVML has been gone; 0 while it is there."""
        return 0.0 if self._gone_since_s is None else now_s - self._gone_since_s

    # --- the session --------------------------------------------------------------------------

    def _reopen(self, now_s: float) -> None:
        """Start a session where there is none, and anew where a GPU is missing from it."""
        if self._open:
            missing = self.nvml.unreadable or any(b.lost for b in self.boards.values())
            if not missing or now_s - self._opened_at_s < self.settings.health.rescan_s:
                return
        elif now_s - self._opened_at_s < RETRY_S:
            self._note_gone(now_s)
            return
        self._opened_at_s = now_s
        self._open = False
        found = {gpu.uuid: gpu for gpu in self.nvml.open()}
        self._open, self._gone, self._gone_since_s = True, "", None
        self._drop_replaced(found)
        for uuid, gpu in found.items():
            if uuid not in self.boards:
                log.info("gpu found uuid=%s index=%d model=%r", uuid, gpu.index, gpu.model)
                self.boards[uuid] = Board(
                    uuid, gpu.index, gpu.model, None, self.settings, mig_slice=_slice_of(gpu)
                )
        places = find_places(list(found.values()), self.settings.sys / PCI_DEVICES)
        for uuid, board in self.boards.items():
            board.gpu = found.get(uuid)
            board.gpu_is_new = True
            if board.gpu is not None:
                board.place = places.get(uuid, UNKNOWN_PLACE)
            if board.gpu is not None:
                board.index, board.slice = board.gpu.index, _slice_of(board.gpu)
                self._find_size(board, board.gpu)

    def _find_size(self, board: Board, gpu: Gpu) -> None:
        """Take the size of a GPU from where it is known; the first reading of memory checks it."""
        if gpu.memory_bytes is not None:
            if 0 < gpu.memory_bytes <= MAX_GPU_BYTES:
                board.memory_bytes, board.memory_source = gpu.memory_bytes, None
        elif board.memory_bytes is None or board.memory_source is not None:
            size = system_bytes(gpu.model, gpu.numa_node, self.settings.proc)
            board.memory_bytes = size if size is not None and size <= MAX_GPU_BYTES else None
            known = board.memory_bytes is not None
            board.memory_source = MemorySource.SYSTEM if known else MemorySource.UNKNOWN

    def _drop_replaced(self, found: Mapping[str, Gpu]) -> None:
        """Forget the GPUs that are missing where as many others have come that were not known.

        A GPU that only fails leaves the node with fewer; it stays in the report, in quarantine. So
        does a slice, until its GPU has another that was not known: it was divided anew.
        Where NVML cannot read some GPUs, it is not known which they are.
        """
        missing, new = self.boards.keys() - found.keys(), found.keys() - self.boards.keys()
        if self.nvml.unreadable:
            return
        if len(new) < len(missing):
            divided = {_board_of(found[uuid]) for uuid in new}
            missing = {uuid for uuid in missing if self.boards[uuid].board_uuid in divided}
        for uuid in sorted(missing):
            log.info("gpu replaced uuid=%s", uuid)
            del self.boards[uuid]
            self._full_gpus.discard(uuid)

    def _lose_nvml(self, now_s: float, why: str) -> None:
        if self._gone_since_s is None:
            log.error("nvml gone reason=%r", why)
            self._gone_since_s = now_s
        self._open, self._gone = False, why
        self.nvml.close()
        for board in self.boards.values():
            board.gpu = None
            board.forget_readings()
        self._note_gone(now_s)

    def _note_gone(self, now_s: float) -> None:
        if self.gone_for_s(now_s) >= GONE_GRACE_S:
            for board in self.boards.values():
                board.quarantine.trouble(now_s, "NVML cannot be read on this node")

    # --- readings -----------------------------------------------------------------------------

    def _read_memory(self, board: Board, now_s: float, *, full: bool) -> None:
        if board.lost and not full:
            return
        try:
            with self._alone(board, now_s):
                if board.gpu is None:
                    raise GpuLostError(board.lost or "the GPU is no longer found")
                board.read_memory(now_s, self._owner if full else self._known_owner, all_kinds=full)
        except GpuLostError as error:
            self._lose(board, now_s, error)
        else:
            if board.lost:
                log.info("gpu answers again uuid=%s", board.uuid)
            board.lost = ""

    def _read_rest(self, board: Board, now_s: float, placed: Iterable[tuple[str, PodInfo]]) -> None:
        if board.lost:
            return
        try:
            with self._alone(board, now_s):
                board.find_foreign(now_s, placed)
                board.read_rest(now_s)
        except GpuLostError as error:
            self._lose(board, now_s, error)

    @contextmanager
    def _alone(self, board: Board, now_s: float) -> Iterator[None]:
        """Let a fault of ours in what one GPU answers cost that GPU and no other."""
        try:
            yield
        except (GpuLostError, NvmlGoneError):
            raise
        except Exception as error:
            self.faults[type(error).__name__] += 1
            log.exception("gpu not understood uuid=%s", board.uuid)
            board.forget_readings()
            board.quarantine.trouble(now_s, f"what it answers is not understood: {error!r}")

    def _report(self, board: Board, now_s: float, handed: Handed) -> GPU:
        with self._alone(board, now_s):
            return board.report(now_s, self._pods, self.paces, handed)
        return GPU(
            uuid=board.uuid,
            index=board.index,
            slice=board.slice,
            model=board.model,
            memory_bytes=board.memory_bytes or 0,
            health=Health.QUARANTINED,
            health_reason=board.quarantine.reason(now_s),
            shares=0,
            shares_reason="quarantined",
            dra_shares=None if handed.way == ENVIRONMENT else 0,
        )

    def _lose(self, board: Board, now_s: float, error: GpuLostError) -> None:
        if not board.lost:
            log.error("gpu lost uuid=%s reason=%r", board.uuid, str(error))
        board.lost = str(error)
        board.forget_readings()
        board.quarantine.trouble(now_s, str(error))

    def _placed(self) -> dict[str, list[tuple[str, PodInfo]]]:
        """Return the pods of ours that may run, with their UIDs, by the GPU they were given."""
        found: dict[str, list[tuple[str, PodInfo]]] = {}
        for uid in self._pods or ():
            info = self._pods.find(uid) if self._pods else None
            if info is not None and info.ours and not info.finished:
                for gpu in info.assigned or ():
                    found.setdefault(gpu, []).append((uid, info))
        return found

    def _owner(self, pid: int) -> str | None:
        container = self._attribution.container(pid)
        return container.pod_uid if container else None

    def _known_owner(self, pid: int) -> str | None:
        container = self._attribution.remembered(pid)
        return container.pod_uid if container else None

    def _take_xids(self, now_s: float) -> None:
        for uuid, code in self.nvml.xids():
            board = self.boards.get(uuid)
            if board is None:
                continue
            board.xids[code] += 1
            fatal = board.quarantine.xid(now_s, code)
            log.warning("xid uuid=%s code=%d quarantined=%s", uuid, code, fatal)

    def _unsettled(self, pods: PodDirectory) -> set[str]:
        """Return the pods that are unknown, and those that have left a GPU, perhaps by failing."""
        holding = {tenant.uid for board in self.boards.values() for tenant in board.holders()}
        seen = {uid for board in self.boards.values() for uid in board.tenants}
        return (seen - holding) | {uid for uid in holding if pods.find(uid) is None}

    # --- memory guard -------------------------------------------------------------------------

    def _guard(self, stamp: str) -> None:
        """Ask for the eviction of who outgrew its prediction on a GPU that is nearly full."""
        settings = self.settings.guard
        if settings.mode == "off":
            return
        holding = {t.uid for board in self.boards.values() for t in board.holders()}
        self.requests = {uid: r for uid, r in self.requests.items() if uid in holding}
        asked = {request.gpu for request in self.requests.values()}
        for board in self.boards.values():
            if not board.is_nearly_full(settings):
                self._full_gpus.discard(board.uuid)
                continue
            first = board.uuid not in self._full_gpus
            self._full_gpus.add(board.uuid)
            tenants = board.guarded(self._pods)
            found = guard.offender(tenants)
            if first:
                self.nearly_full["outgrown" if found else "nobody"] += 1
            found = found or guard.collided(tenants, board.usable_bytes)
            if first:
                log.warning(
                    "gpu nearly full uuid=%s pod=%s reason=%r",
                    board.uuid,
                    found.uid if found else "",
                    found.reason if found else "no pod outgrew its prediction",
                )
            info = self._pods.find(found.uid) if found and self._pods else None
            if found and info and settings.mode == "evict" and board.uuid not in asked:
                self.requests[found.uid] = EvictionRequest(
                    namespace=info.namespace,
                    pod=info.name,
                    uid=found.uid,
                    gpu=board.uuid,
                    reason=found.reason,
                    requested_at=stamp,
                    # Of a collision nothing follows for what it needs, but that peaks must fit.
                    memory_bytes=None if found.collided else found.memory,
                )

    def _condition(self, kind: str, stamp: str, trouble: str, good: str, bad: str) -> None:
        """Set a condition; its time changes only when its status does."""
        before = self._conditions.get(kind)
        status = "False" if trouble else "True"
        since = before.last_transition_time if before and before.status == status else stamp
        self._conditions[kind] = Condition(
            type=kind,
            status=status,
            reason=bad if trouble else good,
            message=trouble,
            last_transition_time=since,
        )


def _set_way(settings: AgentSettings) -> str:
    """Return the way that the settings name; without an API server there is no label."""
    return ENVIRONMENT if settings.hand_over == "label" else settings.hand_over


def _slice_of(gpu: Gpu) -> Slice | None:
    """Return what a report says of a slice; None of a whole GPU."""
    found = gpu.slice
    if found is None:
        return None
    return Slice(profile=found.profile, parent=found.parent, number=found.number)


def _board_of(gpu: Gpu) -> str:
    """Return the UUID of the GPU that it is, or is a slice of."""
    return gpu.uuid if gpu.slice is None else gpu.slice.parent
