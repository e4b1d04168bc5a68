"""Simulated GPUs: a stand-in for NVML's library, driven by a text file, and a /proc to match."""

from node_agent.stub.stub import (
    LIBRARY,
    STATE_VARIABLE,
    FakeProc,
    StubError,
    StubGpu,
    StubProcess,
    StubState,
    StubXid,
    Wave,
    build,
    environment,
)

__all__ = [
    "LIBRARY",
    "STATE_VARIABLE",
    "FakeProc",
    "StubError",
    "StubGpu",
    "StubProcess",
    "StubState",
    "StubXid",
    "Wave",
    "build",
    "environment",
]
