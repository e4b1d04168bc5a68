"""Tandem on a control plane, with an extender that the API server's proxy reaches."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path

from controlplane import ControlPlane
from controlplane.installation import Installation
from tandem.contracts import names


class Live:
    """One installation; `address` is where the API server finds this machine."""

    def __init__(
        self, plane: ControlPlane, installation: Installation, address: str, port: int
    ) -> None:
        self.plane, self.installation = plane, installation
        self.address, self.port = address, port

    def lead_to(self, port: int, service: str = names.API_SERVICE, number: int = 80) -> None:
        """Let the port `number` of a Service lead to a port of this machine."""
        where = ("-n", names.NAMESPACE)
        # Without a selector, no controller writes where it leads.
        spec = {"selector": None, "ports": [{"port": number, "targetPort": port}]}
        patch = json.dumps({"spec": spec})
        self.plane.kubectl("patch", "service", service, *where, "-p", patch, "--type=merge")
        target = self._pod()
        label = f"kubernetes.io/service-name={service}"
        self.plane.kubectl("delete", "endpointslices", *where, "-l", label)
        metadata = {"name": service, "namespace": names.NAMESPACE}
        self.plane.apply(
            [
                {
                    "apiVersion": "v1",
                    "kind": "Endpoints",
                    "metadata": {
                        **metadata,
                        "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
                    },
                    "subsets": [
                        {
                            "addresses": [{"ip": self.address, "targetRef": target}],
                            "ports": [{"port": port}],
                        }
                    ],
                },
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        **metadata,
                        "labels": {
                            "kubernetes.io/service-name": service,
                            "endpointslice.kubernetes.io/managed-by": "test",
                        },
                    },
                    "addressType": "IPv4",
                    "ports": [{"name": "", "port": port, "protocol": "TCP"}],
                    "endpoints": [
                        {
                            "addresses": [self.address],
                            "conditions": {"ready": True},
                            "targetRef": target,
                        }
                    ],
                },
            ]
        )

    def _pod(self) -> dict[str, str]:
        """Make a pod that has our address: the API server proxies to addresses of pods alone."""
        where = ("-n", names.NAMESPACE)
        self.plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "extender-here", "namespace": names.NAMESPACE},
                "spec": {
                    "schedulerName": "none",
                    "containers": [{"name": "extender", "image": "extender:1"}],
                },
            }
        )
        status = {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        self.plane.kubectl(
            "patch", "pod", "extender-here", *where, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": status}),
        )  # fmt: skip
        uid = self.plane.get("pod", "extender-here", *where)["metadata"]["uid"]
        found = {"kind": "Pod", "name": "extender-here", "namespace": names.NAMESPACE}
        return {**found, "uid": uid}

    def account(self, namespace: str, name: str, role: str = "view") -> Path:
        """Make a service account with a role in its namespace; return its kubeconfig."""
        self.plane.kubectl("create", "serviceaccount", name, "-n", namespace)
        self.plane.kubectl(
            "create", "rolebinding", name, "-n", namespace,
            f"--clusterrole={role}", f"--serviceaccount={namespace}:{name}",
        )  # fmt: skip
        return self.plane.service_account_kubeconfig(namespace, name)


class Forwarder:
    """A port of all addresses of this machine that leads to one of loopback."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def own_address() -> str:
    """Return an address of this machine that is not loopback: an API server proxies to no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])
