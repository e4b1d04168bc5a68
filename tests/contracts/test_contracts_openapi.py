"""Requests made of the services' own OpenAPI documents, sound and unsound: never a 5xx.

`make fuzz` makes 10,000; each run of the tests makes a few hundred.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as draw_from
from hypothesis.errors import Unsatisfiable
from repeated_faults import fuzz_cases, record
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from tandem.local.processes import free_port
from tandem.local.waiting import wait_until

pytestmark = pytest.mark.slow

CASES = fuzz_cases(150)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The services as processes, on an API server in memory."""
    folder = tmp_path_factory.mktemp("openapi")
    ports = {name: free_port() for name in ("verbs", "public", "predictor")}
    settings_of = {
        "scheduler_extender": {
            "api": "memory",
            "leader": {"always": True},
            "verbs": {"port": ports["verbs"]},
            "public": {"host": "127.0.0.1", "port": ports["public"]},
            "log_level": "WARNING",
        },
        "predictor": {"store": "memory", "host": "127.0.0.1", "port": ports["predictor"]},
    }
    running = []
    for module, config in settings_of.items():
        path = folder / f"{module}.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", module, "--config", str(path)]
        with (folder / f"{module}.log").open("wb") as log:
            running.append(subprocess.Popen(command, stderr=log, stdout=log))
    found = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    try:
        for address in found.values():
            wait_until(
                lambda url=address: any(ended(running)) or ready(url),
                f"{address} is ready",
                timeout_s=120,
            )
        assert not any(ended(running)), [p.read_text() for p in folder.glob("*.log")]
        yield found
        assert not any(ended(running)), "none has ended"
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)
    said = "".join(path.read_text() for path in Path(folder).glob("*.log"))
    assert "Traceback" not in said, said


def ended(running: list[subprocess.Popen[bytes]]) -> list[bool]:
    return [process.poll() is not None for process in running]


def ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.timeout(7200 if CASES > 1000 else 600)
@pytest.mark.parametrize("service", ["verbs", "public", "predictor"])
def test_whatever_is_asked_is_answered_without_a_fault(
    addresses: dict[str, str], service: str, seed: int
) -> None:
    schema = schemathesis.openapi.from_url(f"{addresses[service]}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    taking = [op for op in operations if op.body or list(op.iter_parameters())]
    each = max(1, CASES // 3 // len(taking) // 2)
    sent = 0
    for operation in operations:
        for mode in GenerationMode if operation in taking else [GenerationMode.POSITIVE]:

            @draw_from(seed)
            @settings(
                max_examples=each,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Case) -> None:
                nonlocal sent
                sent += 1
                answer = case.call(timeout=60)
                case.validate_response(answer, checks=[not_a_server_error])

            # Where any string will do, there is nothing unsound to send.
            with contextlib.suppress(Unsatisfiable):
                ask()
    record(
        "fuzz", f"requests by the OpenAPI document of {service}", sent, operations=len(operations)
    )
    assert sent >= each * len(taking)
