"""GPUs on which jobs slow one another down: the stub's processes follow the pods that run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
from e2e_cluster import BOARD, BOARD_BYTES, DEVICES, TandemCluster

from controlplane import wait_until
from node_agent.stub import FakeProc, StubGpu, StubProcess, StubState, build, environment

GIB = 1 << 30
ALONE_PERCENT = 90
#: What the agents of these scenarios do more often than others, so that a test is short.
AGENT = {
    "report_interval_s": 0.5,
    "guard": {"mode": "evict"},
    "utilisation_half_life_s": 2.0,
}


class Physics:
    """`nodes` with so many GPUs each; a job's name up to the dash says what it runs.

    `slowdown` (own, neighbour) is how much longer an iteration takes; others are no trouble to each
    other. `gib` is the memory of each kind, 8 GiB by default; `percent` what it takes of the GPU's
    time when alone, 90 by default. `board` is the model of the GPUs and the bytes that each has.
    """

    def __init__(
        self,
        cluster: TandemCluster,
        folder: Path,
        nodes: dict[str, int],
        slowdown: dict[tuple[str, str], float],
        shares: int = 2,
        board: tuple[str, int] = (BOARD, BOARD_BYTES),
    ) -> None:
        self._board, self._board_bytes = board
        self.slowdown = slowdown
        self.gib: dict[str, int] = {}
        self.percent: dict[str, int] = {}
        self._gpus = {node: [f"GPU-{node}-{i}" for i in range(n)] for node, n in nodes.items()}
        self._cluster = cluster
        self._stop = threading.Event()
        self._pids: dict[str, int] = {}
        self._files = {node: folder / f"{node}.gpus" for node in nodes}
        self._procs = {node: FakeProc(folder / f"{node}.proc") for node in nodes}
        for node in nodes:
            self._write(node, [])
            driver = environment(build(folder), self._files[node])
            settings = {**AGENT, "proc": str(self._procs[node].root), "shares": shares}
            cluster.installation.start_agent(node, driver, settings)
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Physics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self, node: str, processes: list[StubProcess]) -> None:
        gpus = [self._stub(uuid) for uuid in self._gpus[node]]
        state = StubState(gpus=gpus, processes=processes)
        state.write(self._files[node])

    def _stub(self, uuid: str) -> StubGpu:
        return StubGpu(uuid, name=self._board, memory=self._board_bytes)

    def _follow(self) -> None:
        before: dict[str, list[StubProcess]] = {}
        while not self._stop.wait(0.3):
            try:
                answer = self._cluster.plane.http.get("/api/v1/pods")
                pods = answer.raise_for_status().json()["items"]
            except httpx.HTTPError:
                continue
            for node in self._files:
                now = self._processes(node, pods)
                if before.get(node) != now:
                    self._write(node, now)
                    before[node] = now

    def _processes(self, node: str, pods: list[dict[str, Any]]) -> list[StubProcess]:
        here = {
            pod["metadata"]["uid"]: (
                pod["metadata"]["labels"]["job-name"].partition("-")[0],
                self._gpus[node].index(pod["metadata"]["annotations"][DEVICES]),
            )
            for pod in pods
            if pod["spec"].get("nodeName") == node
            and pod["status"].get("phase") == "Running"
            and DEVICES in (pod["metadata"].get("annotations") or {})
            and "job-name" in (pod["metadata"].get("labels") or {})
        }
        found = []
        for uid, (kind, gpu) in sorted(here.items()):
            if uid not in self._pids:
                self._pids[uid] = 1000 + len(self._pids)
                self._procs[node].add(self._pids[uid], uid)
            others = [other for u, (other, at) in here.items() if u != uid and at == gpu]
            slower = sum(self.slowdown.get((kind, other), 0.0) for other in others)
            percent = round(self.percent.get(kind, ALONE_PERCENT) / (1 + slower))
            memory = self.gib.get(kind, 8) * GIB
            found.append(StubProcess(gpu, self._pids[uid], memory, sm=percent))
        return found

    # --- what is known of jobs ------------------------------------------------------------------

    def gpujob(self, namespace: str, job: str) -> dict[str, Any]:
        path = f"/apis/tandem.gpu/v1alpha1/namespaces/{namespace}/gpujobs/job-{job}"
        return self._cluster.read(path).get("status") or {}

    def observed(self, namespace: str, job: str) -> dict[str, Any]:
        return self.gpujob(namespace, job).get("observed") or {}

    def slowdown_of(self, namespace: str, job: str) -> float:
        return (self.observed(namespace, job).get("slowdown") or {}).get("value", 0.0)

    def decisions(self, namespace: str, job: str) -> list[str]:
        found = self.gpujob(namespace, job).get("decisions") or []
        return [f"{each['what']}: {each['why']}" for each in found]

    def is_known_alone(self, namespace: str, job: str) -> None:
        """Wait until the agents have seen how fast a job runs alone."""
        wait_until(
            lambda: "soloUtilisationPercent" in self.observed(namespace, job),
            f"{job} is known to run alone",
            timeout_s=120,
        )
