"""The names of Services, as a cluster serves them: CoreDNS behind the Service `kube-dns`."""

from __future__ import annotations

from typing import Any

from controlplane.realnode.images import COREDNS_IMAGE

_COREFILE = """\
.:5353 {
    errors
    health :8080
    ready :8181
    cache 5
    kubernetes cluster.local in-addr.arpa {
        pods disabled
        ttl 5
    }
}
"""


def manifests(address: str) -> list[dict[str, Any]]:
    """Return the objects of CoreDNS, whose Service has the cluster address `address`."""
    meta = {"name": "coredns", "namespace": "kube-system"}
    labels = {"k8s-app": "kube-dns"}
    readable = ["endpoints", "services", "pods", "namespaces"]
    ports = [
        {"name": name, "port": 53, "targetPort": 5353, "protocol": protocol}
        for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "tandem-test:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": readable, "verbs": ["list", "watch"]},
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "tandem-test:coredns"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "tandem-test:coredns",
            },
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta,
            "data": {"Corefile": _COREFILE},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": "coredns",
                        "dnsPolicy": "Default",
                        "priorityClassName": "system-cluster-critical",
                        "nodeSelector": {"tandem.gpu/real-node": "true"},
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [
                            {
                                "name": "coredns",
                                "image": COREDNS_IMAGE,
                                "args": ["-conf", "/etc/coredns/Corefile"],
                                "readinessProbe": {
                                    "httpGet": {"path": "/ready", "port": 8181},
                                    "periodSeconds": 1,
                                },
                                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                            }
                        ],
                        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": address, "selector": labels, "ports": ports},
        },
    ]
