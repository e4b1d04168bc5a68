"""One control plane for the user at the terminal, kept by a process in the background.

The keeper holds a lock for as long as it lives, with its process id in the lock file, and says in
a state file how the plane is reached once it is up. A lock that no process holds means that no
plane runs, whatever the files say.

    python -m controlplane.background NODES SCHEDULER REAL_NODES OPERATORS
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from controlplane import operators
from controlplane.plane import ControlPlane
from controlplane.realnode.node import import_image
from tandem.errors import TandemError

_POLL_S = 0.1
#: Containers of real nodes may take their grace periods.
_DOWN_TIMEOUT_S = 120.0
_REAP_EVERY_S = 1.0


def state_folder() -> Path:
    """Return where the state is: `tandem` below XDG_STATE_HOME or ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "tandem"


def _state_file() -> Path:
    return state_folder() / "controlplane.json"


def _lock_file() -> Path:
    return state_folder() / "controlplane.lock"


def _log_file() -> Path:
    return state_folder() / "controlplane.log"


def kubeconfig_file() -> Path:
    """Return where the administrator's kubeconfig is put: the same path for every plane."""
    return state_folder() / "kubeconfig"


@contextlib.contextmanager
def _keepers_lock(patience_s: float = 0.0) -> Iterator[IO[str] | None]:
    """Yield the lock file, held, or None when somebody else holds it for `patience_s`."""
    state_folder().mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_s
    with _lock_file().open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield None
                    return
                time.sleep(_POLL_S)
        yield lock


def _is_kept() -> bool:
    """Return whether a keeper lives: its plane is up, starting or stopping."""
    with _keepers_lock() as lock:
        return lock is None


def status() -> dict[str, Any] | None:
    """Return how the running plane is reached, or None when none runs or it is still starting.

    Keys: pid (of the keeper), url, kubeconfig, folder, processes (name -> pid, log, running),
    real_nodes (name -> address, folder).
    """
    if not _is_kept():
        return None
    try:
        state: dict[str, Any] = json.loads(_state_file().read_text())
    except FileNotFoundError:
        return None
    for process in state["processes"].values():
        process["running"] = _alive(process["pid"])
    return state


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def keep(
    nodes: int,
    scheduler: bool,
    real_nodes: int,
    ready: Callable[[dict[str, Any]], None],
    started: Sequence[str] = (),
) -> None:
    """Run a plane in this process until SIGTERM or SIGINT; call `ready` with its state.

    `started`: the names of the operators that run on it.

    Raises TandemError when another plane is kept already.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Patient, because a command that asks for the status holds the lock for a moment.
    with _keepers_lock(patience_s=2.0) as lock:
        if lock is None:
            raise TandemError(
                "a control plane runs already", "Stop it with `tandem controlplane down`."
            )
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            with ControlPlane.start(nodes, scheduler=scheduler, real_nodes=real_nodes) as plane:
                operators.start(plane, started)
                state = _describe(plane)
                ready(state)
                while not stop.wait(_REAP_EVERY_S):
                    for process in plane.processes.values():
                        process.exit_code  # noqa: B018 - asks for it, so that no zombie is left
        finally:
            _state_file().unlink(missing_ok=True)
            kubeconfig_file().unlink(missing_ok=True)


def _describe(plane: ControlPlane) -> dict[str, Any]:
    """Write the kubeconfig and the state file (whole or not at all); return the state."""
    kubeconfig_file().touch(mode=0o600)
    kubeconfig_file().write_bytes(plane.kubeconfig().read_bytes())
    state = {
        "pid": os.getpid(),
        "url": plane.url,
        "kubeconfig": str(kubeconfig_file()),
        "folder": str(plane.folder),
        "processes": {
            process.name: {"pid": process.pid, "log": str(process.log), "running": True}
            for process in plane.processes.values()
        },
        "real_nodes": {
            node.name: {"address": node.address, "folder": str(node.folder)}
            for node in plane.real_nodes.values()
        },
    }
    partial = _state_file().with_suffix(".partial")
    partial.write_text(json.dumps(state))
    partial.replace(_state_file())
    return state


def up(
    nodes: int, scheduler: bool, real_nodes: int = 0, started: Sequence[str] = ()
) -> tuple[dict[str, Any], bool]:
    """Start a plane in the background unless one runs; return its state and whether it is new.

    `started`: the names of the operators that run on a new one.
    """
    keeper = None if _is_kept() else _start_keeper(nodes, scheduler, real_nodes, started)
    while _is_kept() if keeper is None else keeper.poll() is None:
        state = status()
        if state is not None:
            return state, keeper is not None and state["pid"] == keeper.pid
        time.sleep(_POLL_S)
    raise TandemError(
        f"the control plane did not start:\n{_log_file().read_text(errors='replace').strip()}"
    )


def _start_keeper(
    nodes: int, scheduler: bool, real_nodes: int, started: Sequence[str]
) -> subprocess.Popen[bytes]:
    state_folder().mkdir(parents=True, exist_ok=True)
    module = [sys.executable, "-m", "controlplane.background"]
    with _log_file().open("wb") as log:
        return subprocess.Popen(
            [*module, str(nodes), str(scheduler), str(real_nodes), ",".join(started)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def load(archive: Path) -> list[str]:
    """Make the images of an archive known to all real nodes; return the names of the nodes.

    Raises TandemError when no plane with real nodes runs, or when an archive cannot be read.
    """
    nodes = (status() or {}).get("real_nodes", {})
    if not nodes:
        raise TandemError(
            "no control plane with real nodes runs",
            "Start one with `tandem controlplane up --real-nodes 2`.",
        )
    for node in nodes.values():
        import_image(Path(node["folder"]), archive)
    return list(nodes)


def down() -> bool:
    """Stop the plane in the background and wait until it is gone; return whether there was one."""
    if not _is_kept():
        return False
    keeper = int(_lock_file().read_text())
    os.kill(keeper, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_TIMEOUT_S
    while time.monotonic() < deadline:
        if not _is_kept():
            return True
        time.sleep(_POLL_S)
    raise TandemError(
        f"the control plane (process {keeper}) did not stop in {_DOWN_TIMEOUT_S:.0f} s",
        f"End it with `kill -9 {keeper}`: everything that it started ends with it.",
    )


def _main() -> int:
    nodes, scheduler, real_nodes = int(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
    started = [name for name in sys.argv[4].split(",") if name]
    try:
        keep(nodes, scheduler, real_nodes, lambda _: None, started)
    except TandemError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
