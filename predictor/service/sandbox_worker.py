"""The fork server of the sandbox: one child per graph, with limits, then nothing left.

Started as `python -m predictor.service.sandbox_worker FD MEMORY CPU WALL GRAPH`; ends when FD does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

from predictor.errors import GraphError, Refusal
from predictor.graph.features import extract_features, feature_hash

# What a child that was ended by a signal did wrong.
_BY_SIGNAL: dict[int, tuple[Refusal, str]] = {
    signal.SIGXCPU: (Refusal.TIMEOUT, "Reading the graph took too much CPU time."),
    signal.SIGALRM: (Refusal.TIMEOUT, "Reading the graph took too long."),
    signal.SIGKILL: (Refusal.MEMORY, "Reading the graph took too much memory or time."),
}
_CRASHED = (Refusal.CRASHED, "Reading the graph crashed the process that did it.")


def main() -> None:
    """Serve until the other side goes away."""
    fd, memory, cpu, graph_limit = (int(sys.argv[i]) for i in (1, 2, 3, 5))
    wall = float(sys.argv[4])
    control = socket.socket(fileno=fd)
    _warm_up()
    gc.disable()  # a child lives for one graph: nothing in it is worth collecting
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: pid, connection
    control.send(b"ready")
    while True:
        readable, _, _ = select.select([control.fileno(), *children], [], [])
        for pidfd in children.keys() & set(readable):
            _reap(pidfd, *children.pop(pidfd))
        if control.fileno() not in readable:
            continue
        message, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        connection = socket.socket(fileno=fds[0])
        pid = os.fork()
        if pid == 0:
            for other in (control, *(c for _, c in children.values())):
                other.close()
            try:
                _limit(memory, cpu, wall)
                _serve(connection, graph_limit)
            finally:
                os._exit(0)  # never back into the server's loop
        children[os.pidfd_open(pid)] = (pid, connection)


def _warm_up() -> None:
    """Make onnx load everything that it loads late: a child can open no file."""
    from onnx import TensorProto, helper
    from onnx.inliner import inline_local_functions

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    node = helper.make_node("Relu", ["x"], ["y"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", [value], [result]))
    inline_local_functions(model)
    feature_hash(extract_features(model.SerializeToString()))


def _limit(memory: int, cpu: int, wall: float) -> None:
    """Take from this process what it does not need. The first signal to come ends it."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, wall)


def _serve(connection: socket.socket, graph_limit: int) -> None:
    (size,) = struct.unpack("!Q", _receive(connection, 8))
    try:
        if size > graph_limit:
            raise GraphError(Refusal.TOO_LARGE, f"The graph is larger than {graph_limit} bytes.")
        features = extract_features(_receive(connection, size))
        answer = json.dumps({"features": features.wire(), "hash": feature_hash(features)})
    except GraphError as error:
        answer = _refused(error.refusal, error.message, error.hint)
    except MemoryError:
        answer = _refused(Refusal.MEMORY, "Reading the graph took too much memory.")
    except Exception as error:  # whatever a hostile graph provokes in onnx is the graph's fault
        what = f"{type(error).__name__}: {error}"
        answer = _refused(Refusal.MALFORMED, f"The graph contradicts itself ({what[:200]}).")
    _send(connection, answer)


def _refused(refusal: Refusal, message: str, hint: str = "") -> str:
    hint = hint or "Check the file with onnx.checker.check_model, then push it again."
    return json.dumps({"error": message, "hint": hint, "refusal": refusal})


def _send(connection: socket.socket, answer: str) -> None:
    data = answer.encode()
    connection.sendall(struct.pack("!Q", len(data)) + data)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, offset = memoryview(data), 0
    while offset < size:
        received = connection.recv_into(view[offset:])
        if not received:
            os._exit(0)  # who asked has gone
        offset += received
    return bytes(data)


def _reap(pidfd: int, pid: int, connection: socket.socket) -> None:
    """Clean up after a child that ended, and say why if it gave no answer."""
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    with connection, contextlib.suppress(OSError):  # who asked may have gone
        connection.settimeout(1.0)
        if os.WIFSIGNALED(status):
            refusal, message = _BY_SIGNAL.get(os.WTERMSIG(status), _CRASHED)
            _send(connection, _refused(refusal, message))


if __name__ == "__main__":
    main()
