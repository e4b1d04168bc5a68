"""One GPU of the node over time: its readings, its tenants, its health."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from node_agent import guard
from node_agent.config import AgentSettings, GuardSettings
from node_agent.foreign import Unlisted
from node_agent.handover import DRA, DRA_QUEUE, ENVIRONMENT, UNKNOWN, Handed
from node_agent.health import Quarantine, offered_shares
from node_agent.nvml import Gpu, Load, Memory, Process, Sensors
from node_agent.outofmemory import FullTimes
from node_agent.places import UNKNOWN_PLACE
from node_agent.pods import PodDirectory, PodInfo
from node_agent.progress import Pace
from node_agent.tenant import WINDOW_S, Tenant
from node_agent.windows import Ewma
from tandem.contracts.claims import device_name
from tandem.contracts.resources import GPU, Health, MemorySource, PodUse, Slice

#: Returns the pod UID of a PID, None where it is of no pod.
#: Raises ProcessLookupError when the process is gone.
Owner = Callable[[int], str | None]

#: What was observed of a pod that left is reported for this long, so that its end is not missed.
KEEP_LEFT_S = 60.0
#: A process that the driver lists and /proc does not is gone, or of another PID namespace; after
#: this time it is the latter, and foreign.
UNRESOLVED_S = 5.0
#: Windows of utilisation by process last from 1/6 s to 1 s, as the driver chooses: a reading in
#: between finds no rows. The processes of a GPU that has had none for this long are idle.
ROWS_WITHIN_S = 2.0
#: Why a GPU takes one job at a time, by where the size of its memory is from.
_WHOLE = {
    MemorySource.UNKNOWN: "the size of its memory is unknown, so it takes one job that asks for a"
    " whole GPU",
    MemorySource.SYSTEM: "its memory is the system's as well, so it takes one job",
}
#: Why none of our jobs is placed on a GPU that takes new work.
HANDED_OVER = "DRA hands it over, and not the queue"
UNNAMED = "its UUID is no name of a device, so that DRA cannot hand it over"


class Board:
    """A GPU that is known by its UUID, whether it can be read at the moment (`gpu`) or not."""

    def __init__(
        self,
        uuid: str,
        index: int,
        model: str,
        memory_bytes: int | None,
        settings: AgentSettings,
        memory_source: MemorySource | None = None,
        mig_slice: Slice | None = None,
    ) -> None:
        self.uuid = uuid
        self.index = index
        self.model = model
        #: Set where it is a slice of MIG; `index` is that of its parent then.
        self.slice = mig_slice
        #: None where it is not known.
        self.memory_bytes = memory_bytes
        self.memory_source = memory_source
        #: Where it is in the node, as it was last read.
        self.place = UNKNOWN_PLACE
        self.gpu: Gpu | None = None
        #: The session with NVML has been opened anew since the load was read.
        self.gpu_is_new = False
        #: Why the GPU does not answer; "" while it does.
        self.lost = ""
        self.quarantine = Quarantine(settings.health)
        self.memory: Memory | None = None
        self.load: Load | None = None
        self.sensors: Sensors | None = None
        self.mps: bool | None = None
        self._mps_clients: set[int] = set()
        self.tenants: dict[str, Tenant] = {}
        self.xids: Counter[int] = Counter()
        self.full = FullTimes()
        self._settings = settings
        self._utilisation = Ewma(self._settings.utilisation_half_life_s)
        #: None until the driver has answered.
        self._foreign: list[Process] | None = None
        #: Since when a process is of no known pod, by its PID, and the memory of them all.
        self._unresolved: dict[int, float] = {}
        self._unresolved_bytes = 0
        #: Memory of others that no listed process holds; None where that cannot be known.
        self.unlisted_bytes: int | None = None
        self._unlisted = Unlisted()
        self._pids: dict[str, list[int]] = {}
        #: When the driver last had samples of the GPU's utilisation.
        self._samples_s = float("-inf")
        #: When the driver last had rows of utilisation by process.
        self._rows_s = float("-inf")
        #: When memory was last read, and when the processes were last listed.
        self._read_s = self._listed_s = float("-inf")

    @property
    def board_uuid(self) -> str:
        """The UUID of the GPU that it is, or is a slice of."""
        return self.uuid if self.slice is None else self.slice.parent

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the GPUs of the node."""
        return self.index, -1 if self.slice is None else self.slice.number

    def forget_readings(self) -> None:
        """Let everything that was read be absent: the GPU cannot be read now."""
        self.memory, self.load, self.sensors, self.mps = None, None, None, None
        self._foreign = self.unlisted_bytes = None
        self._unlisted.forget()
        self._utilisation = Ewma(self._settings.utilisation_half_life_s)
        for tenant in self.tenants.values():
            tenant.memory = None

    def read_memory(self, now_s: float, owner: Owner, *, all_kinds: bool) -> None:
        """Read memory by process and by pod.

        Unless it is a full reading (`all_kinds`), a GPU whose memory in use is to the byte what it
        was is not asked for its processes: that costs ten times as much.
        """
        assert self.gpu is not None
        before, self.memory = self.memory, self._plausible_memory(now_s)
        known = self._foreign is not None and self.memory is not None
        if known and self.memory == before and not all_kinds:
            self._read_s = now_s
            for uid in self._pids:
                self.tenants[uid].last_seen_s = now_s
            return
        processes = self.gpu.processes(all_kinds=all_kinds)
        if processes is None:
            self._foreign = None
            for tenant in self.tenants.values():
                tenant.memory = None
            return
        self._assign(now_s, processes, owner)
        self._read_s = self._listed_s = now_s
        if all_kinds:
            self._mps_clients = {process.pid for process in processes if process.kind == "mps"}
            self.mps = bool(self._mps_clients)

    def _plausible_memory(self, now_s: float) -> Memory | None:
        """Read the GPU's memory; what cannot be is absent, and a reason for quarantine."""
        assert self.gpu is not None
        memory = self.gpu.memory()
        trouble = memory.trouble if memory is not None else ""
        if memory is not None and not trouble:
            self.memory_bytes, self.memory_source = memory.total, None
        elif not trouble and self.memory_bytes is None and self.memory_source is None:
            trouble = "the size of its memory cannot be read"
        if trouble:
            self.quarantine.trouble(now_s, trouble)
            return None
        return memory

    def find_foreign(self, now_s: float, placed: Iterable[tuple[str, PodInfo]]) -> None:
        """Work out the memory of others that no process holds; `placed` are the pods put here."""
        self.unlisted_bytes = None
        if self.memory is None or not self.memory_bytes:
            self._unlisted.forget()
            return
        listed, ours = self._unresolved_bytes, 0.0
        infos = dict(placed)
        for uid in self._pids.keys() | infos.keys():
            here, info = self.tenants.get(uid), infos.get(uid)
            if uid in self._pids and here is not None and here.memory is not None:
                listed += here.memory
            else:
                most = info.predicted_memory if info is not None else None
                ours += math.inf if most is None else most
        listed += sum(process.memory or 0 for process in self._foreign or ())
        found = self._unlisted.foreign(
            now_s,
            self.memory_bytes,
            max(0, self.memory.used - listed),
            ours,
            reserve_known=self.memory.reserved is not None,
        )
        if self._foreign is not None or not math.isinf(ours):
            self.unlisted_bytes = found

    def read_rest(self, now_s: float) -> None:
        """Read load and sensors."""
        assert self.gpu is not None
        before, self.load = self.load, self.gpu.load()
        first, self.gpu_is_new = self.gpu_is_new, False
        if first and before is not None and before.source == "gpm" and self.load is not None:
            # GPM measures between two snapshots, and a new session has one of them.
            self.load = replace(before, samples=self.load.samples)
        if self.load is not None and self.load.samples:
            self._samples_s = now_s
        lately = now_s - self._samples_s < ROWS_WITHIN_S
        by_rates = self.load is not None and self.load.source == "rates"
        if lately and by_rates and before is not None and before.source == "samples":
            # None of the driver's windows has ended since its last samples, which still hold.
            self.load = replace(before, samples=())
        # Sources measure different things: an average over two of them would be neither.
        if self.load is None or before is None or before.source != self.load.source:
            self._utilisation = Ewma(self._settings.utilisation_half_life_s)
        if self.load is not None and (self.load.samples or self.load.source != "samples"):
            self._utilisation.update(now_s, self.load.percent)
        self.sensors = self.gpu.sensors()
        self.quarantine.sensors(now_s, self.sensors)
        self._share_load(now_s)

    def _assign(self, now_s: float, processes: tuple[Process, ...], owner: Owner) -> None:
        by_pod: dict[str, list[Process]] = {}
        foreign: list[Process] = []
        unresolved: dict[int, float] = {}
        self._unresolved_bytes = 0
        for process in processes:
            try:
                uid = owner(process.pid)
            except ProcessLookupError:
                since = unresolved[process.pid] = self._unresolved.get(process.pid, now_s)
                if now_s - since >= UNRESOLVED_S:
                    foreign.append(process)
                else:
                    self._unresolved_bytes += process.memory or 0
                continue
            if uid is None:
                foreign.append(process)
            else:
                by_pod.setdefault(uid, []).append(process)
        self._foreign, self._unresolved = foreign, unresolved
        memory = {uid: _sum([one.memory for one in of_pod]) for uid, of_pod in by_pod.items()}
        known = {uid: self.tenants[uid].memory for uid in self._pids}
        changed = sum(memory.get(uid) != known.get(uid) for uid in memory.keys() | known.keys())
        # What two gained and lost between two lists may have left the sum as it was for a while.
        before_s = self._read_s if changed <= 1 else self._listed_s
        for uid, held in memory.items():
            if uid not in self.tenants:
                capacity = max(1, round(WINDOW_S / self._settings.memory_interval_s))
                self.tenants[uid] = Tenant(uid, self._settings, capacity)
            self.tenants[uid].take_memory(before_s, now_s, held)
        for uid in self._pids.keys() - by_pod.keys():
            self.tenants[uid].has_left()
        self._pids = {uid: [process.pid for process in of_pod] for uid, of_pod in by_pod.items()}
        for uid, tenant in list(self.tenants.items()):
            if uid not in by_pod and now_s - tenant.last_seen_s > KEEP_LEFT_S:
                del self.tenants[uid]

    def _share_load(self, now_s: float) -> None:
        """Give each tenant its part of the load: a tenant that is alone has all of it.

        The utilisation by process is read only where it decides: NVML takes a millisecond of CPU
        for it.
        """
        assert self.gpu is not None
        alone = len(self._pids) == 1 and self._foreign == [] and not self.unlisted_bytes
        samples = self.load.samples if alone and self.load is not None else ()
        by_pid = self._by_pid(now_s) if self._pids and not samples else None
        for uid, pids in self._pids.items():
            tenant = self.tenants[uid]
            if samples:
                tenant.take_samples(samples)
                mean = sum(sample.percent for sample in samples) / len(samples)
                tenant.utilisation.update(now_s, mean)
                continue
            if not alone:
                tenant.share_gpu()
            if by_pid is None:
                continue
            if self._mps_clients.issuperset(pids):
                # NVML counts their work for the MPS server, which is no process of this pod.
                tenant.forget_utilisation()
            else:
                total = sum(by_pid.get(pid, 0.0) for pid in pids)
                tenant.utilisation.update(now_s, min(total, 100.0))

    def _by_pid(self, now_s: float) -> dict[int, float] | None:
        """Return percent of the GPU's time by PID; None where the driver has no new rows yet."""
        assert self.gpu is not None
        found = self.gpu.process_utilisation()
        if found:
            self._rows_s = now_s
        elif (self.load and self.load.percent) and now_s - self._rows_s < ROWS_WITHIN_S:
            return None  # none of the driver's windows has ended since
        return found

    def holders(self) -> list[Tenant]:
        """Return the pods that have a process on the GPU now."""
        return [self.tenants[uid] for uid in self._pids]

    def pids(self) -> set[int]:
        """Return every process on the GPU."""
        of_pods = {pid for pids in self._pids.values() for pid in pids}
        return of_pods | {process.pid for process in self._foreign or ()} | self._unresolved.keys()

    def fullness(self) -> float:
        """Return the share in use of the memory that processes may have; 0 where it is unknown."""
        if self.memory is None or self.usable_bytes <= 0:
            return 0.0
        return self.memory.used / self.usable_bytes

    @property
    def usable_bytes(self) -> int:
        """Memory that processes may have; 0 where the size is unknown."""
        reserved = self.memory.reserved if self.memory is not None else None
        return max(0, (self.memory_bytes or 0) - (reserved or 0))

    def is_nearly_full(self, settings: GuardSettings) -> bool:
        """Return whether two pods or more are on the GPU and its memory is about to end."""
        return len(self._pids) >= 2 and self.fullness() >= settings.near_full

    def misplaced(self, pods: PodDirectory | None) -> list[str]:
        """Return the pods (namespace/name) of ours that run here and were given other GPUs."""
        infos = [pods.find(tenant.uid) if pods else None for tenant in self.holders()]
        return [
            f"{info.namespace}/{info.name}"
            for info in infos
            if info is not None and info.ours and not info.belongs_on(self.uuid)
        ]

    def guarded(self, pods: PodDirectory | None) -> list[guard.Tenant]:
        """Return the pods that the memory guard may blame: ours, with what was predicted."""
        found = []
        for tenant in self.holders():
            info = pods.find(tenant.uid) if pods else None
            if info is not None and info.belongs_on(self.uuid):
                found.append(guard.Tenant(tenant.uid, tenant.memory, info.predicted_memory))
        return found

    def report(
        self, now_s: float, pods: PodDirectory | None, paces: dict[str, Pace], handed: Handed
    ) -> GPU:
        """Return what is reported of the GPU; absent where it could not be read."""
        uses = []
        for uid, tenant in sorted(self.tenants.items()):
            info = pods.find(uid) if pods else None
            foreign = info is not None and not info.belongs_on(self.uuid)
            uses.append(tenant.use(now_s, info, foreign=foreign, pace=paces.get(uid)))
        others = [use for use in uses if use.foreign]
        unlisted = self.unlisted_bytes or 0
        anonymous = [process.memory for process in self._foreign or ()]
        if unlisted:
            uses.append(PodUse(foreign=True, memory_bytes=_known(anonymous) + unlisted))
        elif anonymous:
            uses.append(PodUse(foreign=True, memory_bytes=_sum(anonymous)))
        foreign_memory = _sum([use.memory_bytes for use in uses if use.foreign])
        if self.unlisted_bytes is not None:  # what processes without a figure hold is in it
            of_others = [use.memory_bytes for use in others]
            foreign_memory = _known(of_others) + _known(anonymous) + unlisted
        elif self._foreign is None:
            foreign_memory = None
        # A display server draws on the GPU and computes nothing there.
        computing = any(process.kind != "graphics" for process in self._foreign or ())
        why = self.quarantine.reason(now_s)
        owners = sum(use.uid in self._pids for use in others) + (computing or unlisted > 0)
        by_dra, by_claims = handed.way in (DRA, UNKNOWN), handed.way != ENVIRONMENT
        shares, shares_reason = offered_shares(
            self._settings.shares,
            why,
            self.sensors,
            # Pods with claims are not distinguished from others yet, and their shares are counted
            # already.
            0 if by_dra else owners,
            unlisted_bytes=0 if by_dra else unlisted,
            whole=_WHOLE[self.memory_source] if self.memory_source else "",
            is_slice=self.slice is not None,
            divided=self.gpu is not None and self.gpu.slice is not None and self.gpu.slice.divided,
        )
        if handed.way == DRA_QUEUE and device_name(self.uuid) is None:
            shares, shares_reason = 0, UNNAMED
        if handed.closed and shares:
            shares, shares_reason = 0, handed.closed
        utilisation = self._utilisation.value
        return GPU(
            uuid=self.uuid,
            index=self.index,
            model=self.model,
            slice=self.slice,
            memory_bytes=self.memory_bytes or 0,
            memory_source=self.memory_source,
            memory_reserved_bytes=self.memory.reserved if self.memory else None,
            memory_used_bytes=self.memory.used if self.memory else None,
            memory_foreign_bytes=foreign_memory,
            memory_unlisted_bytes=self.unlisted_bytes,
            utilisation_percent=None if utilisation is None else round(utilisation, 1),
            utilisation_source=self.load.source if self.load else None,
            memory_activity_percent=self.load.memory_activity if self.load else None,
            temperature_celsius=self.sensors.temperature_celsius if self.sensors else None,
            power_watts=self.sensors.power_watts if self.sensors else None,
            ecc_uncorrected_errors=self.sensors.ecc_uncorrected if self.sensors else None,
            mig=self.sensors.mig if self.sensors else None,
            mps=self.mps,
            compute_mode=self.sensors.compute_mode if self.sensors else None,
            numa_node=self.place.numa_node,
            nvlink_domain=self.place.nvlink_domain,
            health=Health.QUARANTINED if why else Health.HEALTHY,
            health_reason=why,
            shares=0 if by_dra else shares,
            shares_reason=shares_reason or (HANDED_OVER if by_dra else ""),
            dra_shares=shares if by_claims else None,
            memory_guarded=self._settings.guard.mode == "evict",
            pods=uses,
        )


def _known(parts: list[int | None]) -> int:
    """Return the sum of the parts that are known."""
    return sum(part for part in parts if part is not None)


def _sum(parts: list[int | None]) -> int | None:
    """Return the sum, or None where a part is unknown."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
