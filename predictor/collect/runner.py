"""Measures a plan: one configuration at a time alone, then pairs of them, into a file.

After each stop (the time budget, an interrupt, a kill) the file is good to go on with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from predictor.collect.catalog import Model
from predictor.collect.exports import Exports
from predictor.collect.nvml import Nvml, Watch, Window, open_nvml
from predictor.collect.plan import Configuration, new_pairs, next_group, pair_key
from predictor.collect.processes import Failed, Pool, Worker
from predictor.collect.records import Record, Records

_PREPARE_S = 120.0
_ANSWER_S = 60.0
#: What the first configuration is taken to need, before any was timed.
_GUESS_S = 6.0


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement; times in seconds."""

    device: str = "cuda"
    backend: str = "predictor.collect.torch_backend:TorchBackend"
    seconds: float = 1.5
    pair_seconds: float = 1.5
    deadline: float = float("inf")  # of time.monotonic()
    warm: int = 3
    group: int = 8
    max_pairs: int = 1000
    graphs: bool = True


class Budget:
    """The time that is left, and what the next step is likely to need."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._cost = _GUESS_S

    def allows(self) -> bool:
        """Whether another step is likely to end in time."""
        return time.monotonic() + self._cost < self._deadline

    def spent(self, started: float) -> None:
        """Note what a step took."""
        self._cost += 0.3 * (time.monotonic() - started - self._cost)


class Runner:
    """Carries out a plan; `say` gets a few words about each configuration."""

    def __init__(
        self, settings: Settings, records: Records, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._records = records
        self._say = say
        self._pool = Pool(settings.backend, settings.device, settings.warm)
        self._nvml: Nvml | None = None
        self._capacity = 0
        self._deadline = settings.deadline
        self._budget = Budget(settings.deadline)

    def start(self, header: Record) -> list[str]:
        """Write the header; returns the libraries whose models can be built."""
        self._pool.fill()
        worker = Worker(self._settings.backend, self._settings.device)
        try:
            info = worker.ask(_PREPARE_S, do="info")
        finally:
            worker.end()  # its context would count as memory of others
        if self._settings.device.startswith("cuda"):
            self._nvml = open_nvml(info["uuid"])
        driver = self._nvml.driver_version() if self._nvml else None
        self._capacity = info["gpu"]["memoryBytes"] or 0
        versions = info["versions"] | ({"driver": driver} if driver else {})
        kept = {key: value for key, value in asdict(self._settings).items() if key != "deadline"}
        self._records.start({"gpu": info["gpu"], "versions": versions, "settings": kept, **header})
        libraries: list[str] = info["libraries"]
        return libraries

    def close(self) -> None:
        """End all processes."""
        self._pool.close()

    def solo(self, plan: list[Configuration], models: dict[str, Model]) -> None:
        """Measure what of the plan is not in the file, until the time is up."""
        done = self._records.done("solo")
        with Exports(self._settings.backend, self._records, self._deadline) as exports:
            for config in plan if self._settings.graphs else ():
                if config.key in done:  # a kill may have come before its graph was written
                    exports.want(models[config.model], config.sequence)
            for place, config in enumerate(plan):
                if config.key in done:
                    continue
                if not self._budget.allows():
                    return
                started = time.monotonic()
                model = models[config.model]
                if self._settings.graphs:
                    exports.want(model, config.sequence)
                record = self._alone(config, model)
                self._records.append(record)
                self._budget.spent(started)
                self._say(f"{place + 1}/{len(plan)} {config.key}: {_in_words(record)}")

    def until(self, deadline: float) -> None:
        """Give what follows this much time."""
        self._deadline = deadline

    def pairs(self) -> None:
        """Measure pairs of what ran alone, a group on the GPU at a time, until the time is up."""
        known = {r["key"]: r for r in self._records.of_kind("solo") if r["status"] == "ok"}
        memory = {key: self._peak(record) for key, record in known.items()}
        families = {key: record["family"] for key, record in known.items()}
        done = self._records.done("pair")
        budget = Budget(self._deadline)
        while len(done) < self._settings.max_pairs and budget.allows():
            capacity = self._capacity or 1 << 62
            group = next_group(memory, families, done, capacity, self._settings.group)
            if not group:
                return
            residents: dict[str, Worker] = {}
            try:
                for key in group:
                    worker = self._resident(known[key])
                    if worker is None:
                        memory.pop(key)  # it ran alone, and does not next to others
                        continue
                    residents[key] = worker
                for first, second in list(new_pairs(list(residents), done)):
                    if len(done) >= self._settings.max_pairs or not budget.allows():
                        return
                    if first not in residents or second not in residents:
                        continue
                    started = time.monotonic()
                    record = self._together(known[first], known[second], residents)
                    self._records.append(record)
                    done.add(record["key"])
                    budget.spent(started)
                    self._say(f"pair {len(done)}: {record['key']}: {_in_words(record)}")
            finally:
                for worker in residents.values():
                    worker.end()

    def _alone(self, config: Configuration, model: Model) -> Record:
        record: Record = {
            "kind": "solo", "key": config.key, "model": model.name, "family": model.family,
            "batchSize": config.batch, "precision": config.precision,
            "optimizer": config.optimizer, "sequence": config.sequence,
        }  # fmt: skip
        worker = self._pool.take()
        try:
            before = self._nvml.memory_used_bytes() if self._nvml else None
            ready = worker.ask(_PREPARE_S, do="prepare", config=asdict(config))
            with Watch(self._nvml) as watch:
                ran = worker.ask(
                    _ANSWER_S + self._settings.seconds, do="measure", seconds=self._settings.seconds
                )
            after = self._nvml.memory_used_bytes() if self._nvml else None
            details = worker.ask(_ANSWER_S, do="details")
        except Failed as failure:
            return record | {"status": failure.status, "error": failure.message}
        finally:
            worker.end()
        return record | {
            "status": "ok",
            "measured": _measured(ran, watch.window, before, after),
            "details": {"ready": ready, **details},
        }

    def _resident(self, solo: Record) -> Worker | None:
        """Return a process that holds a configuration on the GPU, ready to run."""
        worker = self._pool.take()
        try:
            worker.ask(_PREPARE_S, do="prepare", config=_configuration(solo))
        except Failed:
            worker.end()
            return None
        return worker

    def _together(self, first: Record, second: Record, residents: dict[str, Worker]) -> Record:
        record: Record = {
            "kind": "pair", "key": pair_key(first["key"], second["key"]),
            "first": first["key"], "second": second["key"],
        }  # fmt: skip
        sides = (first["key"], second["key"])
        seconds = self._settings.pair_seconds
        answers, failures = [], []
        with Watch(self._nvml) as watch:
            for key in sides:
                residents[key].tell(do="measure", seconds=seconds)
            for key in sides:
                try:
                    answers.append(residents[key].hear(_ANSWER_S + seconds))
                except Failed as failure:
                    failures.append(failure)
                    residents.pop(key).end()
        if failures:
            return record | {"status": failures[0].status, "error": failures[0].message}
        overlap = min(a["endedAt"] for a in answers) - max(a["startedAt"] for a in answers)
        longest = max(a["endedAt"] - a["startedAt"] for a in answers)
        times = [answer["iterationMeanS"] for answer in answers]
        alone = [solo["measured"]["iterationMeanS"] for solo in (first, second)]
        return record | {
            "status": "ok",
            "iterationS": times,
            "slowdown": [max(t / s - 1, 0.0) for t, s in zip(times, alone, strict=True)],
            "overlap": round(max(overlap, 0.0) / longest, 4),
            **_seen(watch.window),
        }

    def _peak(self, solo: Record) -> int:
        return int(solo["measured"].get("memoryPeakBytes") or 0)


def _configuration(solo: Record) -> dict[str, Any]:
    config = Configuration(
        solo["model"], solo["batchSize"], solo["precision"], solo["optimizer"], solo["sequence"]
    )
    return asdict(config)


def _measured(ran: Record, window: Window, before: int | None, after: int | None) -> Record:
    """Return the figures of a solo run; the peak is what the process took of the whole GPU.

    `before` and `after` are NVML's bytes in use: both count what the driver reserves for itself,
    which CUDA's own figure leaves out, so that only their difference is the process's.
    """
    measured = {key: ran[key] for key in ("iterations", "iterationS", "iterationMeanS")}
    if "reservedPeakBytes" in ran:
        used = ran["deviceUsedBytes"] if before is None or after is None else after - before
        # The allocator returns nothing to the driver; what is not its own is context and libraries.
        not_reserved = used - ran["reservedBytes"]
        measured |= {
            "memoryPeakBytes": ran["reservedPeakBytes"] + max(not_reserved, 0),
            "allocatedPeakBytes": ran["allocatedPeakBytes"],
            "reservedPeakBytes": ran["reservedPeakBytes"],
        }
    return measured | _seen(window)


def _seen(window: Window) -> Record:
    found: Record = {}
    if window.utilisation:
        ordered = sorted(window.utilisation)
        found["utilisationPercent"] = round(statistics.fmean(ordered), 2)
        found["utilisationP95Percent"] = ordered[int(0.95 * (len(ordered) - 1))]
        found["utilisationSource"] = window.source
        found["utilisationSamples"] = len(ordered)
    if window.memory_used_bytes:
        found["deviceUsedPeakBytes"] = max(window.memory_used_bytes)
    return found | ({"gpm": window.gpm} if window.gpm else {})


def _in_words(record: Record) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record.get('error', '')[:60]}"
    if record["kind"] == "pair":
        return "slowdown " + " / ".join(f"{slowdown:.2f}" for slowdown in record["slowdown"])
    measured = record["measured"]
    words = [f"{1e3 * measured['iterationS']:.1f} ms"]
    if "memoryPeakBytes" in measured:
        words.append(f"{measured['memoryPeakBytes'] / 2**30:.1f} GiB")
    if "utilisationPercent" in measured:
        words.append(f"{measured['utilisationPercent']:.0f} %")
    return ", ".join(words)
