"""The service as a process with certificates from files, which change while it runs."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml

from controlplane.certificates import Authority
from scheduler_extender.admission.certificates import Serving, generate
from scheduler_extender.admission.config import AdmissionConfig, Rotation
from scheduler_extender.config import ConfigError, Public, read_config
from scheduler_extender.serving import front
from scheduler_extender.serving.front import FrontConfig
from tandem.kube.memory import MemoryCluster
from tandem.local.processes import free_port
from tandem.local.waiting import wait_until


def new() -> Serving:
    return generate(["localhost"], datetime.now(UTC))


def renew(folder: Path) -> Serving:
    """Exchange the files at once, as kubelet does with a Secret that is mounted."""
    serving = new()
    made = folder / f"..{id(serving)}"
    serving.write(made)
    link = folder / "new"
    link.symlink_to(made.name)
    link.rename(folder / "data")
    return serving


def caller(folder: Path) -> bytes:
    """Write the certificate of a caller; return the authority that signed it."""
    authority = Authority("callers")
    Serving(authority.pem, *authority.client("kube-scheduler")).write(folder)
    return authority.pem


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[int, int, Serving]]:
    """The ports of the verbs and of the rest, and the certificate of both."""
    serving = renew(tmp_path)
    (tmp_path / "callers.crt").write_bytes(caller(tmp_path / "caller"))
    verbs, public = free_port(), free_port()
    files = {
        "tls_cert": str(tmp_path / "data" / "tls.crt"),
        "tls_key": str(tmp_path / "data" / "tls.key"),
    }
    config = {
        "api": "memory",
        "verbs": {**files, "port": verbs, "client_ca": str(tmp_path / "callers.crt")},
        "public": {**files, "host": "127.0.0.1", "port": public},
        "certificate": {"look_s": 0.1},
        "leader": {"always": True},
    }
    path = tmp_path / "extender.yaml"
    path.write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "scheduler_extender", "--config", str(path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: answers(public, serving), "it answers", timeout_s=60)
        yield verbs, public, serving
    finally:
        process.terminate()
        process.communicate(timeout=30)


def client(serving: Serving, shows: Path | None = None) -> httpx.Client:
    trust = ssl.create_default_context(cadata=serving.ca.decode())
    if shows is not None:
        trust.load_cert_chain(shows / "tls.crt", shows / "tls.key")
    return httpx.Client(verify=trust, trust_env=False)


def answers(port: int, serving: Serving, shows: Path | None = None) -> bool:
    """Tell whether a new connection that trusts and shows these is answered."""
    with client(serving, shows) as http:
        try:
            return http.get(f"https://localhost:{port}/healthz").is_success
        except httpx.TransportError:
            return False


@pytest.mark.slow
def test_files_that_change_are_served_and_open_connections_go_on(
    ports: tuple[int, int, Serving], tmp_path: Path
) -> None:
    verbs, public, first = ports
    with client(first) as opened:
        url = f"https://localhost:{public}"
        assert opened.get(f"{url}/healthz").is_success
        ends = "tandem_extender_certificate_expiry_timestamp_seconds"
        assert f"\n{ends} 0.0\n" not in opened.get(f"{url}/metrics").text
        second = renew(tmp_path)
        wait_until(lambda: answers(public, second), "the new files are served")
        wait_until(lambda: answers(verbs, second, tmp_path / "caller"), "at both ports")
        assert not answers(public, first)
        assert opened.get(f"{url}/healthz").is_success


@pytest.mark.slow
def test_verbs_that_demand_a_certificate_refuse_clients_without(
    ports: tuple[int, int, Serving], tmp_path: Path
) -> None:
    verbs, _, serving = ports
    assert answers(verbs, serving, tmp_path / "caller")
    assert not answers(verbs, serving)
    caller(tmp_path / "stranger")
    assert not answers(verbs, serving, tmp_path / "stranger")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls_cert": "a"}, "come together"),
        ({"client_ca": "a"}, "client_ca needs"),
    ],
)
def test_half_of_it_is_refused(tmp_path: Path, given: dict[str, str], said: str) -> None:
    path = tmp_path / "extender.yaml"
    path.write_text(yaml.safe_dump({"verbs": given}))
    with pytest.raises(ConfigError, match=said):
        read_config(path)


@pytest.mark.long
def test_files_that_are_not_there_end_it_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "extender.yaml"
    files = {"tls_cert": str(tmp_path / "no.crt"), "tls_key": str(tmp_path / "no.key")}
    path.write_text(yaml.safe_dump({"api": "memory", "public": {**files, "port": 0}}))

    async def start() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scheduler_extender", "--config", str(path),
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, said

    code, said = asyncio.run(start())
    assert code == 1
    assert b"no.crt: No such file" in said


def test_in_a_cluster_the_public_port_hears_only_callers_of_its_authority(tmp_path: Path) -> None:
    renew(tmp_path)
    (tmp_path / "callers.crt").write_bytes(caller(tmp_path / "caller"))
    public = Public(
        tls_cert=tmp_path / "data" / "tls.crt",
        tls_key=tmp_path / "data" / "tls.key",
        client_ca=tmp_path / "callers.crt",
    )
    config = FrontConfig(
        kubeconfig=None,
        namespace="tandem-system",
        public=public,
        probes=None,
        certificate=Rotation(),
        admission=AdmissionConfig(),
        log_level="INFO",
        socket="",
    )

    async def mode() -> ssl.VerifyMode:
        async with front._tls(config, MemoryCluster(), front.Line()) as tls:
            return tls.context.verify_mode

    assert asyncio.run(mode()) is ssl.CERT_REQUIRED
