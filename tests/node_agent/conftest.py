"""Simulated GPUs under the real binding, in the test's own process."""

import ctypes
import os
import tempfile
from pathlib import Path

import pytest
from agent_node import Node

from node_agent.nvml import Nvml
from node_agent.stub import STATE_VARIABLE, FakeProc, StubGpu, StubState, build

#: A clock that tests move by hand: whole samples of the simulated driver, 1/6 s each.
START_S = 1_700_000_000.0


class Driver:
    """The simulated driver: change `state`, then `apply()` it; `advance()` moves its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = StubState(clock_us=int(START_S * 1e6))

    @property
    def now_s(self) -> float:
        return self.state.clock_us / 1e6

    def apply(self) -> None:
        self.state.write(self.path)

    def advance(self, seconds: float) -> None:
        self.state.clock_us += round(seconds * 1e6)
        self.apply()


@pytest.fixture(scope="session")
def stub_library() -> Path:
    library = build(Path(tempfile.gettempdir()) / f"tandem-nvml-stub-{os.getuid()}")
    # Loaded by its path, it is what the binding finds by its name afterwards.
    ctypes.CDLL(str(library))
    return library


@pytest.fixture
def driver(stub_library, tmp_path, monkeypatch) -> Driver:
    driver = Driver(tmp_path / "gpus")
    monkeypatch.setenv(STATE_VARIABLE, str(driver.path))
    driver.apply()
    return driver


@pytest.fixture
def nvml(driver):
    session = Nvml()
    yield session
    session.close()


@pytest.fixture
def proc(tmp_path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def node(driver, proc):
    driver.state.gpus = [StubGpu("GPU-a"), StubGpu("GPU-b")]
    driver.apply()
    made = []

    def make(pods=None, **settings):
        made.append(Node(driver, proc, pods, **settings))
        return made[-1]

    yield make
    for one in made:
        one.monitor.close()
