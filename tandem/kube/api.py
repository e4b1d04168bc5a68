"""The API server as the services use it: the real client, or the cluster in memory."""

from __future__ import annotations

from typing import TypeAlias

from tandem.kube.client import KubeClient
from tandem.kube.memory import MemoryCluster

ClusterApi: TypeAlias = KubeClient | MemoryCluster
