"""The process in front of the extender, as clients of the pod network meet it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml
from extender_builders import NOW

from controlplane.usage import resident_mib
from proof import flood
from scheduler_extender.admission.certificates import generate
from scheduler_extender.admission.webhook import namespace_of
from scheduler_extender.config import ExtenderConfig
from scheduler_extender.serving.app import inner_app
from scheduler_extender.serving.fair import BusyError, FairWorker
from scheduler_extender.serving.front import PUBLIC_LIMITS, FrontConfig
from scheduler_extender.serving.frontman import FrontProcess
from scheduler_extender.serving.gate import Entry, Gate, Guarded, Limits, Turnstile, client_of
from scheduler_extender.serving.limits import Budget
from scheduler_extender.serving.metrics import Metrics
from scheduler_extender.serving.service import Service, running
from tandem.contracts import names
from tandem.kube.memory import MemoryCluster
from tandem.local.processes import free_port

pytestmark = pytest.mark.timeout(120)
MIB = 2**20


class Site:
    """An extender in this process, and the real process in front of it."""

    def __init__(self, service: Service, front: FrontProcess, ports: tuple[int, int, int]) -> None:
        self.service, self.front = service, front
        self.public, self.probes = (
            f"https://127.0.0.1:{ports[0]}",
            f"http://127.0.0.1:{ports[1]}",
        )
        self.port, self.tunnel = ports[0], ports[2]
        self.holds = asyncio.Event()
        self.holds.set()

    async def get(self, url: str, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=30) as client:
            return await client.get(url, **options)

    async def status(self, url: str) -> int:
        try:
            return (await self.get(url)).status_code
        except httpx.TransportError:
            return 0

    async def until(self, url: str, status: int) -> None:
        while await self.status(url) != status:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)

    def memory_mib(self) -> float:
        return resident_mib(self.front.pid)


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    serving = generate(["localhost", "127.0.0.1"], datetime.now(UTC))
    certificate, key = serving.write(folder / "tls")
    kubeconfig = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}  # no server answers there
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    kubeconfig.write_text(
        yaml.safe_dump(
            {"clusters": [cluster], "contexts": [context], "current-context": "x",
             "users": [{"name": "u", "user": {"token": "t"}}]}
        )
    )  # fmt: skip
    ports = free_port(), free_port(), free_port()
    config = ExtenderConfig.model_validate({"api": "memory"})
    listen = {"host": "127.0.0.1", "tls_cert": certificate, "tls_key": key}
    async with running(config, MemoryCluster(), clock=lambda: NOW) as service:
        path = str(folder / "s")
        server = uvicorn.Server(
            uvicorn.Config(inner_app(service), uds=path, lifespan="off", log_level="error")
        )
        task = asyncio.create_task(server.serve())
        settings = FrontConfig.model_validate(
            {
                "kubeconfig": kubeconfig,
                "namespace": config.namespace,
                "public": {**listen, "port": ports[0]},
                "probes": {"host": "127.0.0.1", "port": ports[1]},
                "tunnel": {"host": "127.0.0.1", "port": ports[2]},
                "certificate": config.certificate,
                "admission": config.admission,
                "log_level": "INFO",
                "socket": path,
            }
        )
        front = FrontProcess(
            settings,
            service.metrics,
            lambda: {
                "ready": service.feed.ready,
                "runtime_class": False,
                "levels": service.levels.current,
            },
        )
        keeping = asyncio.create_task(front.run())
        found = Site(service, front, ports)
        try:
            await asyncio.wait_for(found.until(f"{found.probes}/readyz", 200), 60)
            while not front._served:  # noqa: ASYNC110 - its next beat says so
                await asyncio.sleep(0.05)
            yield found
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            server.should_exit = True
            await task


def story(folder: Path, script: Callable[[Site], Any]) -> None:
    async def run() -> None:
        async with site(folder) as found:
            await script(found)

    asyncio.run(run())


@pytest.mark.slow
def test_reviews_go_by_the_levels_of_topology_that_are_in_use(tmp_path: Path) -> None:
    asks = {"annotations": {names.REQUIRED_TOPOLOGY: "example.com/rack"}}
    limits = {"limits": {names.RESOURCE: "1"}}
    body = flood.review(
        {"metadata": asks, "spec": {"containers": [{"name": "c", "resources": limits}]}}
    )

    async def script(found: Site) -> None:
        async def allowed() -> bool:
            async with httpx.AsyncClient(verify=False, trust_env=False) as client:
                answer = await client.post(f"{found.public}/mutate", content=body)
            return bool(answer.json()["response"]["allowed"])

        assert not await allowed()
        found.service.levels.current = ("example.com/rack",)
        async with asyncio.timeout(30):
            while not await allowed():  # noqa: ASYNC110 - its next beat says so
                await asyncio.sleep(0.2)

    story(tmp_path, script)


@pytest.mark.slow
def test_reviews_probes_reads_and_metrics_are_answered(tmp_path: Path) -> None:
    async def script(found: Site) -> None:
        for base in (found.public, found.probes):
            assert [await found.status(base + path) for path in ("/healthz", "/readyz")] == [
                200
            ] * 2
        assert await found.status(f"{found.probes}/metrics") == 404, "clients of all pods reach it"
        body = flood.review({"spec": {"containers": [{"name": "c"}]}})
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            answer = await client.post(f"{found.public}/mutate", content=body)
        assert answer.json()["response"] == {"uid": "u", "allowed": True}
        await asyncio.sleep(1.5)  # the next beat has the count
        metrics = (await found.get(f"{found.public}/metrics")).text
        assert 'tandem_extender_admissions_total{outcome="as it is"} 1.0' in metrics
        for path in ("/v1/gpus", "/v1/jobs", "/v1/explain/a/b"):
            assert await found.status(found.public + path) == 401
            known = {"authorization": "Bearer x"}  # the API server is away
            assert (await found.get(found.public + path, headers=known)).status_code == 503
        for path in ("/filter", "/bind", "/prioritize", "/preempt"):
            assert await found.status(found.public + path) == 404

    story(tmp_path, script)


@pytest.mark.slow
def test_floods_take_bounded_memory_and_leave_the_probes_alone(tmp_path: Path) -> None:
    async def script(found: Site) -> None:
        before = found.memory_mib()
        largest = before
        failed: list[int] = []
        over = asyncio.Event()

        async def watch() -> None:
            nonlocal largest
            while not over.is_set():
                largest = max(largest, found.memory_mib())
                if (status := await found.status(f"{found.probes}/healthz")) != 200:
                    failed.append(status)
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        answers = []
        for body in (flood.unknown_annotations(), flood.malformed_containers()):
            answers += await asyncio.to_thread(flood.post, found.public, body)
        await asyncio.to_thread(flood.half_sent, found.public, held_s=3.0)
        over.set()
        await watching
        assert failed == []
        assert [answer["status"] for answer in answers] == [200, 200]
        assert max(answer["bytes"] for answer in answers) < 16_000
        # 16 MiB of bodies of one client, and what 60 connections buffer unread.
        assert largest - before < 100
        assert (
            found.service.metrics.registry.get_sample_value("tandem_extender_front_restarts_total")
            == 0.0
        )

    story(tmp_path, script)


@pytest.mark.slow
def test_it_is_replaced_where_it_ends_or_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_extender.serving.frontman._SILENT_S", 5.0)

    async def script(found: Site) -> None:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            pid = found.front.pid
            os.kill(pid, number)
            while found.front.pid in (pid, 0):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            await found.until(f"{found.public}/readyz", 200)

    story(tmp_path, script)


@pytest.mark.slow
def test_probes_fail_while_the_extender_hangs_and_only_then(tmp_path: Path) -> None:
    async def script(found: Site) -> None:
        def ask() -> list[int]:
            """Hold this event loop, which is the extender's, and ask meanwhile."""
            said = []
            until = time.monotonic() + 5
            while time.monotonic() < until and 503 not in said:
                with httpx.Client(trust_env=False, timeout=5) as client:
                    said.append(client.get(f"{found.probes}/healthz").status_code)
                time.sleep(0.2)
            return said

        said = ask()  # not awaited: the event loop is blocked meanwhile
        assert said[0] == 200
        assert said[-1] == 503
        await found.until(f"{found.probes}/healthz", 200)

    story(tmp_path, script)


@pytest.mark.slow
def test_it_ends_with_the_extender_even_where_that_is_killed(tmp_path: Path) -> None:
    async def script(found: Site) -> None:
        ports = {"port": free_port()}
        settings = found.front._config
        settings = settings.model_copy(
            update={
                "public": settings.public.model_copy(update=ports),
                "probes": None,
            }
        )
        process = subprocess.Popen(  # noqa: ASYNC220 - no event loop has a part in its end
            [sys.executable, "-m", "scheduler_extender.serving.front"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(settings.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        assert await asyncio.to_thread(process.stdout.readline), "its first beat"
        process.stdin.close()  # as the kernel does at the end of the extender
        assert await asyncio.to_thread(process.wait, 60) == 0
        process.stdout.close()

    story(tmp_path, script)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 2**20,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2**18,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000,
        b"\x16\x03\x01 no TLS at all" * 100,
    ],
    ids=["a head without end", "many heads", "requests without end", "no HTTP"],
)
def test_what_is_no_request_ends_its_connection(tmp_path: Path, sent: bytes) -> None:
    async def script(found: Site) -> None:
        before = found.memory_mib()

        def send() -> bool:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with (
                socket.create_connection(("127.0.0.1", found.port), timeout=20) as plain,
                context.wrap_socket(plain) as connection,
                suppress(OSError),
            ):
                connection.sendall(sent)
                while connection.recv(65536):
                    pass
            return True

        assert await asyncio.to_thread(send)
        assert found.memory_mib() - before < 30
        assert await found.status(f"{found.public}/healthz") == 200

    story(tmp_path, script)


# --- what bounds it, one by one ------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_idle_connection_outlives_the_90_s_that_the_api_server_keeps_it() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def script() -> None:
        settings = uvicorn.Config(answer, http="httptools", lifespan="off", log_config=None)
        settings.load()
        made: list[Guarded] = []

        def make(stile: Turnstile, entry: Entry) -> Guarded:
            guarded = Guarded(settings, uvicorn.Server(settings).server_state, {})
            guarded.turnstile, guarded.entry = stile, entry
            made.append(guarded)
            return guarded

        listener = socket.create_server(("127.0.0.1", 0))
        gate = Gate(listener, PUBLIC_LIMITS, make)
        async with httpx.AsyncClient(trust_env=False) as client:
            url = "http://{}:{}/".format(*listener.getsockname())
            for _ in range(2):
                assert (await client.get(url)).status_code == 200
            (connection,) = made
            closes = connection.timeout_keep_alive_task
            assert closes is not None
            assert closes.when() - asyncio.get_running_loop().time() > 90
            assert connection.entry.due_s - time.monotonic() > 90
        gate.close()

    asyncio.run(script())


def test_one_address_has_so_many_connections_and_waits_its_turn() -> None:
    clock = Clock()
    stile = Turnstile(Limits(per_address=5, total=100, rate=1.0, burst=3.0), clock)
    waits = [entered[1] for _ in range(5) if (entered := stile.enter("a"))]
    assert waits == [0.0, 0.0, 0.0, 1.0, 2.0]
    assert stile.enter("a") is None, "its connections are all taken"
    entered = stile.enter("b")
    assert entered is not None
    assert entered[1] == 0.0, "another address does not wait"


def test_where_all_are_taken_the_largest_loses_its_oldest() -> None:
    stile = Turnstile(Limits(per_address=8, total=10, rate=1.0, burst=20.0), Clock())
    closed: list[str] = []
    for address in "aaaaaaabbb":
        entered = stile.enter(address)
        assert entered is not None
        entered[0].close = lambda name=address: closed.append(name)  # type: ignore[misc]
    assert stile.enter("kubelet") is not None
    assert (closed, stile.open) == (["a"], 10)


def test_a_connection_that_does_not_come_further_is_closed() -> None:
    clock = Clock()
    stile = Turnstile(Limits(per_address=8, total=10, rate=1.0, burst=20.0), clock)
    entered = stile.enter("a")
    assert entered is not None
    closed: list[bool] = []
    entered[0].close = lambda: closed.append(True)
    stile.sweep()
    assert closed == []
    clock.now = 6.0
    stile.sweep()
    assert (closed, stile.open) == ([True], 0)


def test_addresses_without_connections_are_forgotten() -> None:
    stile = Turnstile(Limits(per_address=8, total=10, rate=1.0, burst=20.0), Clock())
    for number in range(5000):
        entered = stile.enter(f"a{number}")
        assert entered is not None
        stile.leave(entered[0])
    assert len(stile._known) <= 4097


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 0), "fe80::/64"),
        (None, ""),
    ],
)
def test_clients_are_distinguished_by_address(peer: object, client: str) -> None:
    assert client_of(peer) == client


def test_bytes_of_one_client_are_bounded_and_the_largest_gives_way() -> None:
    async def script() -> None:
        budget = Budget(per_client=10, in_all=20)
        given_up: list[str] = []

        async def send(client: str, size: int, *, over: asyncio.Event) -> None:
            try:
                async with asyncio.timeout(60) as deadline:
                    body = budget.begin(client, deadline)
                    try:
                        await budget.grow(body, size)
                        await over.wait()
                    finally:
                        budget.end(body)
            except TimeoutError:
                given_up.append(client)

        over = asyncio.Event()
        tasks = [
            asyncio.create_task(send(client, size, over=over))
            for client, size in (("a", 6), ("a", 5), ("b", 9), ("c", 4))
        ]
        await asyncio.sleep(0.01)
        assert given_up == ["a"], "the larger of its bodies"
        assert budget.held == 5 + 9 + 4
        larger = asyncio.create_task(send("a", 6, over=over))
        await asyncio.sleep(0.05)
        assert budget.held == 5 + 9 + 4, "it waits"
        small = asyncio.create_task(send("api-server", 3, over=over))
        await asyncio.sleep(0.05)
        assert given_up == ["a", "b"], "it holds most"
        assert budget.held == 5 + 4 + 3
        over.set()
        await asyncio.gather(*tasks, small, larger)
        assert budget.held == 0

    asyncio.run(asyncio.wait_for(script(), 30))


def test_a_body_that_is_being_judged_is_not_given_up_for_a_smaller_one() -> None:
    async def script() -> None:
        budget = Budget(per_client=10, in_all=20)
        async with asyncio.timeout(60) as deadline:
            judged = budget.begin("a", deadline)
            await budget.grow(judged, 9)
            judged.whole = True
            async with asyncio.timeout(60) as other:
                waits = asyncio.create_task(budget.grow(budget.begin("a", other), 3))
                await asyncio.sleep(0.01)
                assert not waits.done()
                budget.end(judged)
                await waits
        assert budget.held == 3

    asyncio.run(asyncio.wait_for(script(), 30))


def test_the_client_that_has_used_least_goes_first() -> None:
    async def script() -> None:
        worker = FairWorker(waiting=3)
        gate, done = asyncio.Event(), []
        loop = asyncio.get_running_loop()

        def first() -> None:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
            time.sleep(0.05)

        async def ask(client: str, size: int) -> None:
            await worker.run(client, lambda: done.append(client), size)

        begun = asyncio.create_task(worker.run("hostile", first, 0))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(ask("hostile", 1000)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await ask("hostile", 1000)
        tasks += [asyncio.create_task(ask("api-server", 1000)) for _ in range(2)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(begun, *tasks)
        assert done == ["api-server"] * 2 + ["hostile"] * 3
        with pytest.raises(ZeroDivisionError):
            await worker.run("x", lambda: 1 / 0, 0)

    asyncio.run(asyncio.wait_for(script(), 30))


def test_the_kernel_prefers_the_other_threads_to_a_nice_worker() -> None:
    """The page's views are computed by one: a verb waits for no time slice of it."""

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def script() -> tuple[int, int]:
        worker, nice = FairWorker(waiting=1), FairWorker(waiting=1, nice=3)
        return await worker.run("x", niceness, 0), await nice.run("x", niceness, 0)

    ours = niceness()
    assert asyncio.run(script()) == (ours, min(19, ours + 3))
    assert niceness() == ours


def test_namespaces_of_one_client_take_turns() -> None:
    """The API server sends the reviews of all namespaces: three hundred pods delay no other one."""

    async def script() -> None:
        worker = FairWorker(waiting=400)
        gate, done = threading.Event(), []

        async def ask(namespace: str) -> None:
            await worker.run("api-server", lambda: done.append(namespace), 1000, namespace)

        begun = asyncio.create_task(worker.run("api-server", gate.wait, 0, "mallory"))
        tasks = [asyncio.create_task(ask("mallory")) for _ in range(300)]
        tasks += [asyncio.create_task(ask("honest")) for _ in range(2)]
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(begun, *tasks)
        assert "honest" in done[:1]
        assert [i for i, namespace in enumerate(done) if namespace == "honest"][-1] < 10

    asyncio.run(asyncio.wait_for(script(), 30))


@pytest.mark.parametrize(
    ("body", "namespace"),
    [
        (b'{"request":{"name":"x","namespace":"speech","object":{"namespace":"no"}}}', "speech"),
        (b'{"request":{"name":"\\"namespace\\":\\"vision\\"","namespace":"speech"}}', "speech"),
        (b'{"request":{"name":"x"}}', ""),
        (b'{"request":{"namespace":""}}', ""),
        (b"{" + b" " * 5000 + b'"namespace":"speech"}', ""),
        (b'"namespace":"\xff\xfe"', "\ufffd\ufffd"),
    ],
)
def test_namespace_of_a_review_is_that_of_its_head(body: bytes, namespace: str) -> None:
    assert namespace_of(body) == namespace


class _Process:
    """A process in front that beats when the test says so, and ends when the test says so."""

    pid = 1

    def __init__(self) -> None:
        self.stdin, self.stdout, self.returncode = self, asyncio.StreamReader(), None

    def write(self, line: bytes) -> None:
        if b"end" in line:
            self.returncode = 0

    def kill(self) -> None:
        self.returncode = -9

    def beat(self) -> None:
        said = {"admitted": {}, "certificate_ends_s": 0, "serving": True, "stands_still_s": 0}
        self.stdout.feed_data(json.dumps(said).encode() + b"\n")


def test_an_end_that_comes_with_a_beat_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's `asyncio.wait_for` returns the beat and loses the cancellation."""

    async def run() -> None:
        process = _Process()

        async def started(*_: object, **__: object) -> _Process:
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
        front = FrontProcess(FrontConfig.model_construct(), Metrics(), lambda: {})
        keeping = asyncio.create_task(front.run())
        process.beat()
        while not front.serves:  # noqa: ASYNC110 - it reads when it comes to it
            await asyncio.sleep(0)
        process.beat()
        keeping.cancel()
        ended, _ = await asyncio.wait({keeping}, timeout=10)
        assert ended
        assert process.returncode == 0

    asyncio.run(run())
