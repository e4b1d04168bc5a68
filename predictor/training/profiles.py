"""Profiles: what configurations were measured to use, alone on a GPU; one JSON object a line.

A file is either such profiles as they are, or what `tandem profile collect` wrote
(`predictor.collect.records`): a header for each run, then solo configurations and pairs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from predictor.collect.records import graph_bytes
from predictor.errors import GraphError
from predictor.interference.pairs import MeasuredJob, MeasuredPair
from predictor.load.memory import Setup
from predictor.load.predictor import Predictor
from predictor.load.sources import Question
from tandem.contracts.base import Message
from tandem.contracts.prediction import (
    BatchSize,
    Framework,
    Optimizer,
    Precision,
    PredictRequest,
    Size,
)
from tandem.contracts.resources import GraphFeatures, Load, Percent
from tandem.errors import UsageError
from tandem.files import read_text
from tandem.gpu_types import find_gpu

_Slower = Annotated[float, Field(gt=-1, le=1e6)]


class Origin(StrEnum):
    """Where a profile's figures come from.

    `measured` by the collector, `observed` by the agents of a cluster, `derived` from a measured
    time of a step by the formula's busy time, `synthetic` made by a test.
    """

    MEASURED = "measured"
    OBSERVED = "observed"
    DERIVED = "derived"
    SYNTHETIC = "synthetic"


class Profile(Message):
    """One configuration, alone on a GPU; a figure that was not measured is absent.

    `family` names the architecture: what is learned is tested on families that were left out.
    `memory_peak_bytes` is what the process takes of the GPU, start-up included; the features are
    those at the configuration's sequence length. With `bare_loop` it ran on one batch, which was on
    the GPU: no input was made meanwhile.
    """

    name: str
    family: str
    origin: Origin
    features: GraphFeatures
    batch_size: BatchSize
    precision: Precision = Precision.FP32
    optimizer: Optimizer | None = None
    framework: Framework | None = None
    bare_loop: bool = False
    gpu_model: Annotated[str, Field(min_length=1)]
    gpu_memory_bytes: Size | None = None
    memory_peak_bytes: Size | None = None
    utilisation_percent: Percent | None = None
    utilisation_p95_percent: Percent | None = None
    iteration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def question(self) -> Question:
        """Return what the service would be asked of it."""
        return Question(
            features=self.features,
            batch_size=self.batch_size,
            gpu=find_gpu(self.gpu_model),
            gpu_memory_bytes=self.gpu_memory_bytes,
            declared_memory_bytes=None,
            declared_utilisation_percent=None,
            setup=Setup(self.precision, self.optimizer, self.framework, bare_loop=self.bare_loop),
        )


class _Pair(Message):
    """Two configurations that ran side by side, by their keys, and how much slower than alone."""

    first: str
    second: str
    slowdown: tuple[_Slower, _Slower]


def read_profiles(file: Path) -> list[Profile]:
    """Read the solo configurations of a file; raises UsageError naming the first bad line."""
    return [profile for _, profile in _profiles(file, list(read_records(file)))]


def is_collected(file: Path) -> bool:
    """Whether the collector wrote the file."""
    first = next(read_records(file), (0, {}))[1]
    return first.get("kind") == "header"


def read_measured_pairs(file: Path, predictor: Predictor) -> list[MeasuredPair]:
    """Read the pairs of a collector's file, each side with the load that `predictor` predicts.

    It has to be the one that serves: the model of pairs is asked with its loads.

    Raises UsageError naming the first bad line.
    """
    records = list(read_records(file))
    alone = {str(record.get("key")): profile for record, profile in _profiles(file, records)}
    found = []
    for number, record in records:
        if record.get("kind") != "pair" or record.get("status") != "ok":
            continue
        with _line(file, number):
            ran = _Pair.model_validate(record)
        sides = []
        for key, slowdown in zip((ran.first, ran.second), ran.slowdown, strict=True):
            profile = alone.get(key)
            if profile is None:
                break
            speed = 1 / (1 + slowdown)
            load = _predicted(profile, predictor)
            sides.append(MeasuredJob(name=key, family=profile.family, load=load, speed=speed))
        else:
            gpu = alone[ran.first].gpu_model
            found.append(MeasuredPair(gpu_model=gpu, first=sides[0], second=sides[1]))
    return found


def _profiles(
    file: Path, records: Sequence[tuple[int, dict[str, Any]]]
) -> Iterator[tuple[dict[str, Any], Profile]]:
    """Yield each solo configuration that ran, as it was read and as a profile."""
    header: dict[str, Any] = {}
    graphs = {_graph_of(r): r for _, r in records if r.get("kind") == "graph"}
    features: dict[str, dict[str, object] | None] = {}
    for number, record in records:
        kind = record.get("kind", "profile")
        if kind == "header":
            header = record
        if kind not in ("solo", "profile") or record.get("status", "ok") != "ok":
            continue  # a configuration that ran out of memory has nothing to learn from
        with _line(file, number):
            whole = record
            if kind == "solo":
                graph = _graph_of(record)
                if graph not in features:
                    features[graph] = _features(graphs.get(graph, {}))
                whole = _of_collector(record, header) | {"features": features[graph]}
            yield record, Profile.model_validate(whole)


def _graph_of(record: dict[str, Any]) -> str:
    return repr((record.get("model"), record.get("sequence")))


@contextmanager
def _line(file: Path, number: int) -> Iterator[None]:
    """Turn what is wrong with a record into a UsageError with its line."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise UsageError(f"{file}, line {number}: {where}: {first['msg']}.") from None
    except (AttributeError, TypeError, ValueError, zlib.error) as error:
        raise UsageError(f"{file}, line {number}: {error}.") from None


def _features(graph: dict[str, Any]) -> dict[str, object] | None:
    """Return a model's features: as extracted before, of its graph, or of its layers."""
    if "features" in graph:
        known: dict[str, object] = graph["features"]
        return known
    packed = graph_bytes(graph)
    if packed is not None:
        from predictor.graph.features import extract_features

        with suppress(GraphError):
            return extract_features(packed).wire()
    return graph.get("layers")


def _predicted(profile: Profile, predictor: Predictor) -> Load:
    request = PredictRequest(
        batch_size=profile.batch_size,
        precision=profile.precision,
        optimizer=profile.optimizer,
        gpu_model=profile.gpu_model,
        gpu_memory_bytes=profile.gpu_memory_bytes,
    )
    return predictor.predict(request, profile.features).load


def read_records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's object with its number; raises UsageError for what is none.

    A last line that was cut off (the collector was killed while it wrote) is left out.
    """
    lines = read_text(file).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                return
            record = None
        if not isinstance(record, dict):
            raise UsageError(f"{file}, line {number}: not a JSON object.")
        yield number, record


def _of_collector(record: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
    """Return a solo record as a profile; its GPU is that of the header before it."""
    gpu = header.get("gpu", {})
    measured = record.get("measured", {})
    return {
        "name": record.get("model"),
        "family": record.get("family"),
        "origin": Origin.MEASURED,
        "batchSize": record.get("batchSize"),
        "precision": record.get("precision"),
        "optimizer": record.get("optimizer"),
        "bareLoop": True,
        "gpuModel": gpu.get("model"),
        "gpuMemoryBytes": gpu.get("memoryBytes"),
        "memoryPeakBytes": measured.get("memoryPeakBytes"),
        "utilisationPercent": measured.get("utilisationPercent"),
        "utilisationP95Percent": measured.get("utilisationP95Percent"),
        "iterationS": measured.get("iterationS"),
    }
