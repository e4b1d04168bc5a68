"""The simulated driver of a node: it knows which process uses how much of which GPU.

    python -I gpu_driver.py CONFIG

A process connects to the socket that the container runtime has put into its container, and sends
lines of JSON: {"gpu": 0, "memory": BYTES, "sm": PERCENT, "mem": PERCENT}. `gpu` counts within the
GPUs that the container sees. Each line replaces what the process used before and is answered
{"ok": true} or {"error": ...}; more memory than the GPU has left is refused, as cudaMalloc does.
The kernel says which process is at the other end, by the number that the node gives it, and a
connection that ends frees what it held: a process cannot report for another or forget to free.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

_RESERVED = 600 << 20


class Driver:
    """The GPUs, the connections, and the state file that the library reads."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.uuids = [f"GPU-{config['node']}-{index}" for index in range(config["gpus"])]
        self.used: dict[int, dict[str, Any]] = {}  # by file descriptor
        self.log = Path(config["log"]).open("a", buffering=1)  # noqa: SIM115 - for the process's life

    def write(self) -> None:
        """Replace the state file at once, so that no reader sees half of it."""
        memory = self.config["memory"]
        lines = ["driver version=580.65.06"]
        for index, uuid in enumerate(self.uuids):
            lines.append(
                f"gpu uuid={uuid} memory={memory} reserved={_RESERVED} minor={index}"
                " window_us=167600 mig=0 mode=0 temperature=40 power_mw=70000 pending=0 failure=0"
                " ecc=0 name=NVIDIA A100-SXM4-80GB"
            )
        lines += [
            f"process gpu={use['gpu']} pid={use['pid']} kind=compute"
            f" memory={use['memory']} extra=0 sm={use['sm']} mem={use['mem']}"
            for use in self.used.values()
            if use["gpu"] is not None
        ]
        path = Path(self.config["state"])
        fresh = path.with_name("state.new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(path)

    def connect(self, peer: socket.socket) -> None:
        """Learn which process it is, and which GPUs its container was given."""
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", credentials)[0]
        self.used[peer.fileno()] = {"pid": pid, "gpu": None, "memory": 0, "sm": 0, "mem": 0}

    def visible(self, pid: int) -> list[int]:
        """Return the GPUs that a process may use, in its own order."""
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found = [w.partition(b"=")[2] for w in words if w.startswith(b"NVIDIA_VISIBLE_DEVICES=")]
        names = found[0].decode().split(",") if found else []
        return [self.uuids.index(name) for name in names if name in self.uuids]

    def answer(self, fd: int, line: bytes) -> dict[str, Any]:
        """Take over what a process says that it uses."""
        use, asked = self.used[fd], json.loads(line)
        visible = self.visible(use["pid"])
        if not 0 <= asked["gpu"] < len(visible):
            return {"error": "no such device", "visible": len(visible)}
        gpu = visible[asked["gpu"]]
        others = sum(
            other["memory"] for key, other in self.used.items() if key != fd and other["gpu"] == gpu
        )
        free = self.config["memory"] - _RESERVED - others
        if asked["memory"] > free:
            return {"error": "out of memory", "free": free}
        use |= {"gpu": gpu, **{key: int(asked.get(key, 0)) for key in ("memory", "sm", "mem")}}
        self.write()
        self.note(use, "uses")
        return {"ok": True, "uuid": self.uuids[gpu]}

    def note(self, use: dict[str, Any], what: str) -> None:
        """Write down who used what, for tests."""
        self.log.write(json.dumps({"time": time.time(), "event": what, **use}) + "\n")

    def leave(self, fd: int) -> None:
        """Free what a process held."""
        use = self.used.pop(fd)
        if use["gpu"] is not None:
            self.note(use, "frees")
            self.write()


def main() -> None:
    """Serve until killed."""
    config = json.loads(Path(sys.argv[1]).read_text())
    driver = Driver(config)
    driver.write()
    path = Path(config["socket"])
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    path.chmod(0o666)  # like /dev/nvidia0: any user of the container
    os.chmod(path.parent, 0o755)  # noqa: PTH101, S103 - containers pass through it
    server.listen(128)
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    rest: dict[int, bytes] = {}
    while True:
        for key, _ in selector.select():
            side = key.fileobj
            assert isinstance(side, socket.socket)
            if side is server:
                peer, _ = server.accept()
                driver.connect(peer)
                selector.register(peer, selectors.EVENT_READ)
                rest[peer.fileno()] = b""
                continue
            fd = side.fileno()
            try:
                chunk = side.recv(65536)
                *lines, rest[fd] = (rest[fd] + chunk).split(b"\n")
                for line in lines:
                    side.sendall(json.dumps(driver.answer(fd, line)).encode() + b"\n")
            except (OSError, ValueError, KeyError, TypeError) as error:
                print(f"process {driver.used[fd]['pid']}: {error!r}", file=sys.stderr, flush=True)
                chunk = b""
            if not chunk:
                selector.unregister(side)
                driver.leave(fd)
                del rest[fd]
                side.close()


main()
