"""`tandem model` and `tandem predict`: push graphs, see what would be predicted for a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from tandem.cli.complete import model_names, namespaces
from tandem.cli.forms import Column, Form, lists, print_list, printed, reports, shows
from tandem.cli.output import err, print_json, print_table
from tandem.cli.reach import (
    AccountOption,
    ContextOption,
    KubeconfigOption,
    Reader,
    SystemOption,
    TokenOption,
    reader,
    with_options,
)
from tandem.contracts import names
from tandem.contracts.prediction import (
    Framework,
    ModelList,
    ModelSummary,
    Optimizer,
    Parallelism,
    Precision,
    Prediction,
    PredictRequest,
)
from tandem.contracts.resources import GraphFeatures, Source
from tandem.errors import UsageError

if TYPE_CHECKING:
    from predictor.service.sandbox import ParsedModel

_CHUNK_BYTES = 1 << 20
_GIB = 1024**3
_MODELS = "/v1/models"
#: What the predictor takes of a graph (`sandbox.graph_bytes`).
_GRAPH_BYTES = 32 << 20
#: A file of this size takes seconds to read.
_LONG_BYTES = 256 << 20

NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="Kubernetes namespace. [that of your context]",
        autocompletion=namespaces,
    ),
]  # fmt: skip
ModelArgument = Annotated[str, typer.Argument(help="Its name.", autocompletion=model_names)]


class Predictor:
    """The predictor, through the API server of a kubeconfig, or at an address."""

    def __init__(self, server: str, token: str, read: Reader) -> None:
        self._server, self._token, self._read = server, token, read

    @property
    def own_namespace(self) -> str:
        """The namespace of the kubeconfig's context."""
        return self._read.own_namespace

    def ask(
        self, method: str, path: str, query: dict[str, str] | None = None, body: object = None
    ) -> Any:  # noqa: ANN401 - JSON
        """Return what it answers; `body` is sent as JSON. Raises TandemError."""
        if not self._server:
            content = None if body is None else json.dumps(body).encode()
            return self._read.request(method, path, query, content)
        return self._direct(method, path, params=query or {}, json=body)

    def push(self, file: Path, query: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
        """Send a graph. Weights do not leave this machine, except to an address that was named."""
        size = _size(file)
        kind = "application/octet-stream"
        if not self._server:
            return self._read.request("POST", _MODELS, query, _graph(file, size), kind)
        headers = {"content-type": kind, "content-length": str(size)}
        return self._direct("POST", _MODELS, params=query, content=_chunks(file), headers=headers)

    def listed(self, namespace: str | None) -> Any:  # noqa: ANN401 - JSON
        """Return the models of a namespace; None: of all that the caller may list."""
        if not self._server:
            return self._read.of_namespace(_MODELS, namespace)
        return self._direct("GET", _MODELS, params={"namespace": namespace} if namespace else {})

    def check_namespace(self, namespace: str | None) -> None:
        """Raise MissingError where the named namespace does not exist, as far as is known."""
        if not self._server:
            self._read.check_namespace(namespace)

    def _direct(self, method: str, path: str, **options: object) -> Any:  # noqa: ANN401 - JSON
        from predictor.service.client import PredictorClient

        token = self._token or _token_of_kubeconfig(self._server)
        with PredictorClient(self._server, token) as http:
            answer = http.request(method, path, **options)
        return json.loads(answer) if answer else None


@contextmanager
def _predictor(server: str, token: str, **options: Any) -> Iterator[Predictor]:  # noqa: ANN401 - of a Reader
    with reader(token=token, **options) as read:
        yield Predictor(server, token, read)


def _place(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    system: SystemOption = names.NAMESPACE,
    account: AccountOption = "",
    token: TokenOption = "",
    server: Annotated[
        str,
        typer.Option(
            "--server", envvar="TANDEM_PREDICTOR",
            help="URL of the predictor. [through the API server of the kubeconfig]",
        ),
    ] = "",
) -> None:  # fmt: skip
    """Have the parameters that say where the predictor is."""


asks = with_options(_place, _predictor)

#: The options whose names are not those of the fields of a request.
_OPTIONS = {
    "gpu-model": "gpu",
    "gpu-memory-bytes": "gpu-memory",
    "declared-memory-bytes": "memory",
    "declared-utilisation-percent": "utilization",
}

app = typer.Typer(help="Push, list, show and delete model graphs.", no_args_is_help=True)


@app.command()
@asks
@shows
def push(
    predictor: Predictor,
    file: Annotated[Path, typer.Argument(help="ONNX file; its weights are not kept.")],
    name: Annotated[str, typer.Option(help="Name of the model [the file's name].")] = "",
    namespace: NamespaceOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Push the graph of a model, so that jobs can name it in `tandem.gpu/model`."""
    where = namespace or predictor.own_namespace
    answer = predictor.push(file, {"name": name or _name_of(file), "namespace": where})
    model = ModelSummary.model_validate(answer)
    if not printed(form, f"{model.namespace}/{model.name}", model.wire()):
        err.print(f"Pushed {model.name} to namespace {model.namespace}.")
        _print_features(model)


@app.command("list")
@asks
@lists
def list_models(
    predictor: Predictor,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Only this namespace. [all that you may list]",
            autocompletion=namespaces,
        ),
    ] = None,
    form: Form = Form.TABLE,
) -> None:  # fmt: skip
    """List the models of a namespace, or of all."""
    models = ModelList.model_validate(predictor.listed(namespace))
    if not models.models:
        predictor.check_namespace(namespace)
    if form is Form.JSON:
        print_json(models.wire()["models"])
        return
    empty = "No model is known: tandem model push FILE."
    print_list(form, "", _MODEL_COLUMNS, models.models, lambda m: f"{m.namespace}/{m.name}", empty)


@app.command()
@asks
@shows
def show(
    predictor: Predictor,
    name: ModelArgument,
    namespace: NamespaceOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Show the features of one model."""
    where = namespace or predictor.own_namespace
    answer = predictor.ask("GET", f"{_MODELS}/{_path(where)}/{_path(name)}")
    model = ModelSummary.model_validate(answer)
    if not printed(form, f"{model.namespace}/{model.name}", model.wire()):
        _print_features(model)


@app.command()
@asks
@shows
def delete(
    predictor: Predictor,
    name: ModelArgument,
    namespace: NamespaceOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Forget a model. Jobs that name it then count as unknown."""
    where = namespace or predictor.own_namespace
    predictor.ask("DELETE", f"{_MODELS}/{_path(where)}/{_path(name)}")
    if not printed(form, f"{where}/{name}", {"namespace": where, "name": name, "deleted": True}):
        err.print(f"Deleted {name} of namespace {where}.")


_MODEL_COLUMNS = (
    Column("Namespace", lambda model: model.namespace),
    Column("Name", lambda model: model.name),
    Column("Parameters (M)", lambda model: model.features.parameters / 1e6),
    Column("GFLOPs", lambda model: model.features.flops / 1e9),
    Column("Activations (MiB)", lambda model: model.features.activation_bytes / 2**20),
    Column("Skew", lambda model: model.features.tensor_skew),
    Column("Opset", lambda model: model.features.opset),
    Column("Nodes", lambda model: model.features.nodes, wide=True),
    Column("Depth", lambda model: model.features.depth, wide=True),
    Column("SHA-256", lambda model: model.file_sha256, wide=True),
)


def _gpu_names(incomplete: str) -> list[str]:
    """Return the types of GPU whose figures are known, for the shell's completion."""
    from tandem.gpu_types import GPU_TYPES

    names = sorted(each.name for each in GPU_TYPES)
    return [name for name in names if name.startswith(incomplete.upper())]


@asks
@reports
def predict(
    predictor: Predictor,
    file: Annotated[
        Path | None, typer.Argument(help="ONNX file, read on this machine without a server.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Name of a model that was pushed.", autocompletion=model_names),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per GPU and step.")] = None,
    accumulation_steps: Annotated[
        int, typer.Option(min=1, help="Micro-batches of each batch (gradient accumulation).")
    ] = 1,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Type of the GPU, such as 'Tesla V100-SXM2-16GB'.", autocompletion=_gpu_names
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Memory of the GPU, such as 16Gi. [that of its type]")
    ] = None,
    precision: Annotated[Precision | None, typer.Option(help="How it computes.")] = None,
    optimizer: Annotated[Optimizer | None, typer.Option(help="Its optimiser.")] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, max=2**20, help="Tokens or frames of a sample.")
    ] = None,
    framework: Annotated[
        Framework | None, typer.Option(help="What it trains with. [what exported the graph]")
    ] = None,
    parallelism: Annotated[
        Parallelism | None, typer.Option(help="How its workers divide the model's states.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=2**20, help="GPUs of the job, for --parallelism.")
    ] = 1,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Activations are computed anew.")
    ] = False,
    cpus: Annotated[
        float | None,
        typer.Option(min=0.01, max=2**20, help="CPUs that it asks for, for each GPU. [8]"),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Declared peak memory per GPU, such as 12Gi.")
    ] = None,
    utilization: Annotated[
        float | None, typer.Option(min=0, max=100, help="Declared mean utilisation, percent.")
    ] = None,
    namespace: NamespaceOption = None,
    form: Form = Form.TABLE,
) -> None:
    """Predict what a training job would use of a GPU.

    The options are named as the annotations of a job are.
    """
    if file is not None and model is not None:
        raise UsageError("Give a FILE or --model, not both.")
    try:
        request = PredictRequest(
            namespace=namespace or ("default" if model is None else predictor.own_namespace),
            model=model or (_name_of(file) if file else None),
            batch_size=batch_size,
            accumulation_steps=accumulation_steps,
            precision=precision,
            sequence_length=sequence_length,
            optimizer=optimizer,
            framework=framework,
            parallelism=parallelism,
            workers=workers,
            gradient_checkpointing=gradient_checkpointing,
            cpus=cpus,
            gpu_model=gpu,
            gpu_memory_bytes=_bytes("--gpu-memory", gpu_memory),
            declared_memory_bytes=_bytes("--memory", memory),
            declared_utilisation_percent=utilization,
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = "-".join(map(str, first["loc"])).replace("_", "-")
        option = _OPTIONS.get(field, field)
        raise UsageError(f"--{option}: {first['msg']}.") from None
    if file is not None:
        prediction = _predict_here(file, request)
    else:
        if model is not None:  # one that is misspelt would be predicted as an unknown one
            predictor.ask("GET", f"{_MODELS}/{_path(request.namespace)}/{_path(model)}")
        answer = predictor.ask("POST", "/v1/predict", body=request.wire())
        prediction = Prediction.model_validate(answer)
    if form is Form.JSON:
        print_json(prediction.wire())
    else:
        _print_prediction(prediction)
    if gpu is not None:
        _say_of_unknown(gpu)


def _say_of_unknown(gpu: str) -> None:
    """Say so where no figures of a type of GPU are known: its name may be misspelt."""
    from difflib import get_close_matches

    from tandem.gpu_types import GPU_TYPES, find_gpu

    if find_gpu(gpu) is None:
        near = get_close_matches(gpu.upper(), [each.name for each in GPU_TYPES])
        known = f"; nearest: {', '.join(near)}" if near else ""
        err.print(
            f"No figures of a GPU {gpu!r} are known{known}. A slow GPU stands for it.",
            highlight=False, markup=False,
        )  # fmt: skip


def _print_prediction(prediction: Prediction) -> None:
    load = prediction.load
    known = load.memory_source is not Source.WHOLE_GPU
    memory, utilisation, step = (
        prediction.memory_interval_bytes,
        prediction.utilisation_interval_percent,
        prediction.iteration_interval_s,
    )
    rows = [
        (
            "GPU memory",
            f"{_gib(load.memory_base_bytes)} + {_gib(load.memory_peak_extra_bytes)} in peaks "
            f"({load.peak_probability:.0%} of the time)"
            if known
            else "a whole GPU",
            f"{_gib(memory.low)} to {_gib(memory.high)}" if memory else "-",
            _gib(load.memory_p95_bytes) if load.memory_p95_bytes else "-",
            load.memory_source.value,
        ),
        (
            "GPU utilisation",
            f"{load.utilisation_percent:.0f} %",
            f"{utilisation.low:.0f} to {utilisation.high:.0f} %" if utilisation else "-",
            f"{load.utilisation_p95_percent:.0f} %",
            load.utilisation_source.value,
        ),
    ]
    if load.iteration_s is not None:
        rows.append(
            (
                "Time of a step",
                f"{load.iteration_s:.3g} s",
                f"{step.low:.3g} to {step.high:.3g} s" if step else "-",
                "-",
                load.utilisation_source.value,
            )
        )
    print_table("", ("Resource", "Expected", "90 % interval", "At most (p95)", "Source"), rows)
    err.print(prediction.explanation, highlight=False)
    if load.out_of_distribution:
        err.print("This job is unlike those that the prediction is known to hold for.")


def _token_of_kubeconfig(server: str) -> str:
    """Return the user's token where it stays secret on its way."""
    from tandem.errors import TandemError
    from tandem.kube.credentials import user_token
    from tandem.kube.secrecy import stays_secret

    try:
        return user_token() if stays_secret(server) else ""
    except TandemError:
        return ""  # no cluster: a predictor that keeps models in memory asks for none


def _predict_here(file: Path, request: PredictRequest) -> Prediction:
    from predictor.load.model import open_predictor

    parsed = _parse(file)
    return open_predictor(None).predict(request, parsed.features, parsed.feature_hash)


def _parse(file: Path) -> ParsedModel:
    from predictor.service.sandbox import Sandbox

    _size(file)
    with Sandbox() as sandbox:
        return sandbox.parse_file(_chunks(file))


def _size(file: Path) -> int:
    try:
        if file.is_dir():
            raise UsageError(f"{file} is a directory, not an ONNX file.")
        return file.stat().st_size
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from None


def _graph(file: Path, size: int) -> bytes:
    """Return a file without its weights; raises GraphError."""
    from rich.progress import Progress

    from predictor.graph.skim import Skimmer

    skimmer = Skimmer(_GRAPH_BYTES)
    with Progress(console=err, transient=True, disable=size < _LONG_BYTES) as progress:
        task = progress.add_task(f"Reading {file.name}", total=size)
        for chunk in _chunks(file):
            skimmer.feed(chunk)
            progress.advance(task, len(chunk))
    return skimmer.finish()


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from None


def _name_of(file: Path) -> str:
    """Return the file's name as Kubernetes takes names."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in file.stem.lower())
    return kept.strip("-") or "model"


def _path(part: str) -> str:
    from urllib.parse import quote

    return quote(part, safe="")


def _bytes(option: str, quantity: str | None) -> int | None:
    if quantity is None:
        return None
    from tandem.contracts.quantity import parse_quantity

    try:
        declared = int(parse_quantity(quantity))
    except ValueError as error:
        raise UsageError(f"{option}: {error}.") from None
    if declared < 0:
        raise UsageError(f"{option} must not be negative.")
    return declared


def _gib(number_of_bytes: float) -> str:
    return f"{number_of_bytes / _GIB:.1f} GiB"


def _assumptions(features: GraphFeatures) -> Iterator[tuple[str, str]]:
    """Yield what the figures rest on that the graph does not say."""
    if features.assumed_sizes:
        sizes = ", ".join(f"{axis} = {size}" for axis, size in features.assumed_sizes.items())
        yield "assumed sizes", sizes
    if features.sequence_length is not None:
        yield "assumed sequence length", str(features.sequence_length)
    if features.unknown_operators:
        yield "operators of unknown cost", ", ".join(features.unknown_operators)


def _print_features(model: ModelSummary) -> None:
    features = model.features
    operators = sorted(features.op_counts.items(), key=lambda item: (-item[1], item[0]))[:6]
    print_table(
        f"{model.namespace}/{model.name}",
        ("Feature (per sample)", "Value"),
        (
            ("parameters", f"{features.parameters / 1e6:,.2f} M"),
            ("forward GFLOPs", f"{features.flops / 1e9:,.2f}"),
            ("activations", f"{features.activation_bytes / 2**20:,.1f} MiB"),
            ("largest tensor / all (skew)", f"{features.tensor_skew:.3f}"),
            ("nodes, longest path", f"{features.nodes}, {features.depth}"),
            ("operators", ", ".join(f"{count} {name}" for name, count in operators)),
            ("opset", features.opset),
            ("inputs", ", ".join(f"{k} {v}" for k, v in features.input_shapes.items())),
            *_assumptions(features),
            ("pushed", f"{model.file_bytes / 2**20:,.1f} MiB, sha256 {model.file_sha256[:12]}"),
        ),
    )
