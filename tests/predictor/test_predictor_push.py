"""A model with much weight is pushed to the service as it runs: streamed, in flat memory."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from predictor_graphs import split_around_weights
from repeated_faults import record, times
from typer.testing import CliRunner

from tandem.cli.main import build_app

MIB = 1 << 20
START_S = 120


@pytest.fixture
def service():
    """The service as a process: its URL and its pid."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "predictor", "--store", "memory", "--host", "127.0.0.1"]
    with subprocess.Popen([*command, "--port", str(port), "--log-level", "warning"]) as process:
        url, ends = f"http://127.0.0.1:{port}", time.monotonic() + START_S
        while True:
            try:
                httpx.get(f"{url}/readyz").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None
                assert time.monotonic() < ends
                time.sleep(0.1)
        yield url, process.pid
        process.terminate()


def peak_mib(pid: int) -> int:
    """The most memory that a process has held since its peak was last forgotten, MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024


@pytest.mark.slow
def test_half_a_gibibyte_of_weights_is_pushed_in_flat_memory(service, tmp_path):
    """A tenth of it here, all of it in `make chaos`."""
    url, pid = service
    size = times(50, 500) * MIB
    before, after = split_around_weights(size)
    big, small = tmp_path / "big.onnx", tmp_path / "small.onnx"
    with big.open("wb") as file:
        file.write(before)
        file.seek(size, 1)  # zeros that take no disk
        file.write(after)
    head, tail = split_around_weights(4096)
    small.write_bytes(head + bytes(4096) + tail)

    def push(file: Path) -> None:
        done = CliRunner().invoke(
            build_app(), ["model", "push", str(file)], env={"TANDEM_PREDICTOR": url}
        )
        assert done.exit_code == 0, done.output

    push(small)  # what the first push costs whatever its size
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak until now
    usual, began = peak_mib(pid), time.monotonic()
    push(big)
    took = time.monotonic() - began
    grown = peak_mib(pid) - usual
    assert grown <= 32
    shown = httpx.get(f"{url}/v1/models/default/big").json()
    assert shown["fileBytes"] == big.stat().st_size > size
    assert shown["features"]["parameters"] == size // 4
    record("-", f"push of {size // MIB} MiB", 1, took_s=round(took, 1), grown_mib=grown)
