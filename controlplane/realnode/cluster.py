"""All real nodes of one plane: their network, their files, and what runs on every cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from controlplane.access import Access
from controlplane.realnode import dns, images
from controlplane.realnode.machine import obstacles
from controlplane.realnode.node import NodeOptions, RealNode, Run
from controlplane.realnode.site import Site
from tandem.errors import TandemError
from tandem.local.scratch import Scratch

#: What a node keeps under /var belongs on a disk: images, and the files of containers.
_DISK = Path("/var/tmp")  # noqa: S108 - mkdtemp makes a folder of our own in it


class RealNodes:
    """The nodes of one plane; `shared` is a folder that all of them see as /srv.

    `site` has the addresses, which the API server needs before any node starts.
    """

    @classmethod
    def prepare(cls) -> Self:
        """Make the network; raise TandemError with every reason when no node can run here."""
        found = obstacles()
        if found:
            raise TandemError(f"no real node on this machine: {'; '.join(found)}")
        return cls(Site())

    def __init__(self, site: Site) -> None:
        self.site = site
        self._scratch = Scratch(_DISK, prefix="tandem-nodes-")
        self.folder = self._scratch.path
        self.folder.chmod(0o755)  # containers of any user pass through it
        site.guard(self.folder)
        self.shared = self.folder / "shared"
        for folder in (self.shared, self.shared / "checkpoints"):
            folder.mkdir()
            folder.chmod(0o777)  # containers of any user write to it
        self.nodes: list[RealNode] = []

    def start(
        self, options: Sequence[NodeOptions], access: Access, run: Run
    ) -> dict[str, RealNode]:
        """Start the nodes and connect them; kubelets register by themselves afterwards."""
        for index, each in enumerate(options):
            node = RealNode(each, index, self.site, access, self.folder, run)
            self.nodes.append(node)
            node.start()
            for archive in (images.coredns_image(), images.scheduler_image()):
                node.import_image(archive)
        for node in self.nodes:
            node.join_network(self.nodes)
        # The API server reaches Services, such as that of a webhook, by the rules of one node.
        self.site.route(self.site.service_cidr, self.nodes[0].address)
        return {node.name: node for node in self.nodes}

    def cluster_manifests(self) -> list[Mapping[str, Any]]:
        """Return what every cluster has: names of Services, and the runtime class of GPUs."""
        return [
            *dns.manifests(self.site.dns_address),
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            },
        ]

    def close(self) -> None:
        """End the nodes and remove everything; may be called twice."""
        for node in self.nodes:
            node.close()
        self.site.close()
        self._scratch.remove()
