"""Runs the predictor: `python -m predictor --store memory`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from predictor.service.app import create_app
from predictor.service.config import PredictorConfig, StoreKind, load_config
from predictor.service.store import ClusterProfileStore, ProfileStore
from tandem.contracts.names import PREDICTOR_AUDIENCE
from tandem.errors import TandemError, UsageError
from tandem.kube.access import Reviews
from tandem.kube.memory import MemoryCluster
from tandem.log import configure_log

# Callers keep connections for 90 s (Go's default); a shorter time here would break them.
_KEEP_ALIVE_S = 95
_GRACEFUL_SHUTDOWN_S = 10

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file of settings.")] = None,
    host: Annotated[
        str | None, typer.Option(envvar="TANDEM_PREDICTOR_HOST", help="Address to listen at.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(envvar="TANDEM_PREDICTOR_PORT", help="Port to listen at.")
    ] = None,
    store: Annotated[
        StoreKind | None,
        typer.Option(envvar="TANDEM_PREDICTOR_STORE", help="Where models are kept."),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(envvar="KUBECONFIG", help="Credentials outside a cluster.")
    ] = None,
    artifacts: Annotated[
        Path | None,
        typer.Option(envvar="TANDEM_PREDICTOR_ARTIFACTS", help="Directory of trained models."),
    ] = None,
    log_level: Annotated[str, typer.Option(envvar="TANDEM_LOG_LEVEL")] = "info",
) -> None:
    """Serve until a signal to stop; requests under way are finished first."""
    configure_log(log_level)
    flags = {"host": host, "port": port, "store": store}
    settings = load_config(config, flags | {"kubeconfig": kubeconfig, "artifacts": artifacts})
    models, reviews = _open_store(settings)
    service = create_app(settings, models, reviews=reviews)
    gc.collect()
    gc.freeze()  # code and schemas: to look through them again is a pause of tens of ms
    uvicorn.run(
        service,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_S,
    )


def _open_store(settings: PredictorConfig) -> tuple[ProfileStore, Reviews | None]:
    """Return where models are kept, and who says who may ask; models in memory are anyone's."""
    if settings.store is StoreKind.MEMORY:
        return ClusterProfileStore(MemoryCluster()), None
    from tandem.kube.client import KubeClient

    client = KubeClient.load(settings.kubeconfig)
    return ClusterProfileStore(client), Reviews(client, audience=PREDICTOR_AUDIENCE)


def main() -> None:
    """Run the service; exit codes: 0, 1 (failed), 2 (usage)."""
    try:
        app()
    except TandemError as error:
        typer.echo(f"error: {error.message} {error.hint}".rstrip(), err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
