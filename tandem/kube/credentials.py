"""Who we are to the API server: the official client's configuration, from wherever we run."""

from __future__ import annotations

from pathlib import Path

import yaml
from kubernetes import config
from kubernetes.client import Configuration

from tandem.errors import TandemError


def load_configuration(kubeconfig: Path | None, context: str | None) -> Configuration:
    """Return what a kubeconfig file says, or the service account of the pod that we run in.

    Without a file: the pod's service account where there is one, else what kubectl would use.

    Raises:
        TandemError: there are no usable credentials.
    """
    configuration = Configuration()
    in_pod = Path(config.incluster_config.SERVICE_TOKEN_FILENAME).exists()
    try:
        if kubeconfig is None and in_pod:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call] # no types published
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call] # no types published
                str(kubeconfig) if kubeconfig else None,
                context=context,
                client_configuration=configuration,
            )
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        raise TandemError(
            f"no usable Kubernetes credentials: {error}",
            "Give a kubeconfig file, or set KUBECONFIG.",
        ) from error
    return configuration


def token_configuration(host: str, token: str, ca_file: Path | None) -> Configuration:
    """Return the configuration of one who bears `token` at the API server `host` (an URL)."""
    return Configuration(
        host=host,
        api_key={"authorization": token},
        api_key_prefix={"authorization": "Bearer"},
        ssl_ca_cert=str(ca_file) if ca_file else None,
    )
