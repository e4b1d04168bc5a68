"""A monitor on simulated GPUs, and the pods of its node."""

import random
from datetime import UTC, datetime

from node_agent.config import AgentSettings
from node_agent.monitor import Monitor
from tandem.contracts.resources import GPU, GPUNodeStatus

GIB = 1 << 30


def uid(n):
    return f"00000000-1111-2222-3333-{n:012x}"


def stamp(driver):
    return datetime.fromtimestamp(driver.now_s, UTC).isoformat().replace("+00:00", "Z")


class Pods(dict):
    """A directory of pods by UID; `wanted` are those that were looked for last."""

    wanted = frozenset()

    def find(self, uid):
        return self.get(uid)

    def look_for(self, uids):
        self.wanted = frozenset(uids)


class Node:
    """A monitor on the simulated driver, and the time they share."""

    def __init__(self, driver, proc, pods=None, **settings):
        self.driver, self.proc = driver, proc
        self.settings = AgentSettings(node="n0", proc=proc.root, sys=proc.root / "sys", **settings)
        self.monitor = Monitor(self.settings, pods=pods)
        self.random = random.Random(1)

    def run(self, seconds):
        """Let time pass, reading as the agent does."""
        end = self.driver.now_s + seconds
        while self.driver.now_s < end - 1e-6:
            step = self.settings.memory_interval_s * self.random.uniform(0.8, 1.2)
            self.driver.advance(min(step, end - self.driver.now_s))
            self.monitor.tick(self.driver.now_s, stamp(self.driver))
        return self.report()

    def report(self) -> GPUNodeStatus:
        return self.monitor.status(self.driver.now_s, stamp(self.driver))

    def gpu(self, index=0) -> GPU:
        return self.report().gpus[index]
