"""Files that people hand in: traces of every format, matrices, profiles, settings, kubeconfigs."""

from __future__ import annotations

import base64
import json
import math
import random
import re
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fuzz_batch import WATCHDOG, Batch
from mutators import changed, changed_bytes
from predictor_graphs import light
from synthetic_profiles import synthetic_profiles

from node_agent.__main__ import read_settings
from predictor.load.model import open_predictor
from predictor.service.config import load_config
from predictor.training.interference import read_pairs
from predictor.training.profiles import is_collected, read_measured_pairs, read_profiles
from scheduler_extender.config import read_config
from tandem.errors import TandemError
from tandem.files import read_csv, read_json, read_yaml
from tandem.kube.credentials import context_namespace
from tandem.kube.kubeconfig import Kubeconfig
from tandem.policy.catalog import profile_names
from tandem.simulator.cluster import parse_cluster
from tandem.simulator.gavel import load_matrix
from tandem.simulator.run import Setup
from tandem.simulator.settings import read_profile
from tandem.simulator.traces import Trace, read_trace

pytestmark = [pytest.mark.slow, WATCHDOG]

_NUMBER = re.compile(r" *[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})? *")


def number_in(text: str) -> Fraction:
    """Return what a field of a table says, in digits that every program reads alike."""
    assert _NUMBER.fullmatch(text), f"{text!r} was taken for a number"
    return Fraction(text.strip())


def same(read: float | None, text: str) -> None:
    """Fail where an optional figure is not the one of the file."""
    if text == "":
        assert read is None
    else:
        assert read == float(number_in(text)), (read, text)


@dataclass(frozen=True)
class Kind:
    """A sort of file: sound ones, how it is read, and what what was read is compared with."""

    sound: tuple[Any, ...]  # text, or a document that is written as JSON or YAML
    read: Callable[[Path], Any]
    check: Callable[[Any, Path], None] = lambda _, __: None
    write: Callable[[Any], str] = json.dumps


def check_trace(trace: Trace, submits: list[float]) -> None:
    """Check the order, and that times count from the first submission."""
    first = min(submits)
    found = [job.submit_s for job in trace.jobs]
    assert found == sorted(found)
    assert sorted(found) == sorted(each - first for each in submits)
    assert all(
        isinstance(job.id, str) and type(job.gpus) is int and job.gpus >= 1 for job in trace.jobs
    )
    assert all(0 < job.duration_s < math.inf and 0 <= job.submit_s < math.inf for job in trace.jobs)


def check_canonical(trace: Trace, path: Path) -> None:
    (_, names), *rows = read_csv(path)
    assert len(trace.jobs) + len(trace.skipped) == len(rows)
    left_out = {line for line, _ in trace.skipped}
    by_id = {}
    for line, row in rows:
        if line not in left_out:
            whole = dict(zip([name.strip() for name in names], row, strict=True))
            by_id[whole["job_id"]] = whole
    submits = []
    for job in trace.jobs:
        row = by_id[job.id]
        submits.append(float(number_in(row["submit_time_s"])))
        assert job.gpus == number_in(row["num_gpus"])
        same(job.duration_s, row["duration_s"])
        same(job.memory_base_gib, row.get("memory_gib", ""))
        same(job.memory_peak_gib, row.get("memory_peak_gib", ""))
        same(job.gpu_utilisation, row.get("gpu_util", ""))
        same(job.iterations, row.get("iterations", ""))
        same(job.batch_size, row.get("batch_size", ""))
        same(job.iteration_s, row.get("iteration_s", ""))
        same(job.peak_probability, row.get("peak_probability", ""))
        assert (job.model or "") == row.get("model", "")
    check_trace(trace, submits)


def check_alibaba(trace: Trace, path: Path) -> None:
    rows = [row for _, row in read_csv(path) if row[0] != "job_name"]
    assert len(trace.jobs) + len(trace.skipped) == len(rows)
    wanted = sorted((job.id, job.gpus, job.duration_s) for job in trace.jobs)
    found, submits = [], []
    skipped = {line for line, _ in trace.skipped}
    for line, row in read_csv(path):
        if row[0] == "job_name" or line in skipped:
            continue
        job, task, instances, _, start, end, _, _, plan, *_ = row
        # A count is the nearest float to what is written.
        gpus = float(number_in(instances)) * math.ceil(number_in(plan or "0") / 100)
        submits.append(float(number_in(start)))
        found.append((f"{job}/{task}", int(gpus), float(number_in(end)) - float(number_in(start))))
        assert gpus == int(gpus)
    assert sorted(found) == wanted
    check_trace(trace, submits)


def check_helios(trace: Trace, path: Path) -> None:
    names, *rows = read_csv(path)
    skipped = {line for line, _ in trace.skipped}
    found, submits = [], []
    for line, row in rows:
        if line in skipped:
            continue
        whole = dict(zip([name.strip() for name in names[1]], row, strict=True))
        gpus = float(number_in(whole["gpu_num"]))
        assert gpus == int(gpus), whole["gpu_num"]
        found.append((whole["job_id"], int(gpus), float(number_in(whole["duration"]))))
        submits.append(moment(whole["submit_time"]))
    assert sorted(found) == sorted((job.id, job.gpus, job.duration_s) for job in trace.jobs)
    check_trace(trace, submits)


def moment(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def check_philly(trace: Trace, path: Path) -> None:
    records = strict_json(path)
    skipped = {number for number, _ in trace.skipped}
    found, submits = [], []
    for number, record in enumerate(records, 1):
        if number in skipped:
            continue
        attempts = [a for a in record["attempts"] if a.get("start_time") and a.get("end_time")]
        lengths = [moment(a["end_time"]) - moment(a["start_time"]) for a in attempts]
        assert all(each >= 0 for each in lengths), "an attempt ended before it began"
        counts = []
        for attempt in attempts:
            details = attempt.get("detail") or []
            assert isinstance(details, list)
            assert all(isinstance(m["gpus"], list) for m in details), "text was taken for a list"
            counts.append(sum(len(m["gpus"]) for m in details))
        gpus = next(count for count in counts if count)
        assert isinstance(record["jobid"], str)
        found.append((record["jobid"], gpus, sum(lengths)))
        submits.append(moment(record["submitted_time"]))
    assert sorted(found) == sorted((job.id, job.gpus, job.duration_s) for job in trace.jobs)
    check_trace(trace, submits)


def strict_json(path: Path) -> Any:
    """Read JSON as other programs do: no NaN, no key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), "a key is there twice"
        return dict(pairs)

    def none(name: str) -> None:
        raise AssertionError(f"{name} was taken for JSON")

    content = path.read_bytes()
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = content.decode("utf-16" if wide else "utf-8-sig")
    return json.loads(text, object_pairs_hook=once, parse_constant=none)


def world_of(path: Path) -> tuple[Any, Any]:
    """Read a matrix of pairs as the simulator does, gangs included."""
    matrix = load_matrix(path, "v100")
    jobs = read_trace_of_two()
    setup = Setup(jobs, (parse_cluster("1x4:V100"),), path)
    return matrix, setup.world(setup.gpus(2))


def read_trace_of_two() -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(CSV)
        file.flush()
        return read_trace(Path(file.name)).jobs


def check_matrix(read: tuple[Any, Any], path: Path) -> None:
    matrix, _ = read
    table = next(t for kind, t in strict_json(path).items() if kind.lower() == "v100")
    assert set(matrix.names) <= set(table)
    for i, name in enumerate(matrix.names):
        solo = table[name]["null"]
        assert type(solo) in (int, float), f"{solo!r} was taken for a rate"
        for j, other in enumerate(matrix.names):
            value = matrix.slowdown[i, j]
            assert value >= 0 or np.isinf(value)  # NaN is neither
            if np.isfinite(value):
                own, theirs = table[name][other]
                assert {type(own), type(theirs)} <= {int, float}
                assert min(own, theirs, solo) > 0
                assert value == pytest.approx(max(solo / own - 1, 0))


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Any:
    """Yield (path, value) of all that is no list and no object."""
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    else:
        yield at, value
    for key, each in entries:
        yield from leaves(each, (*at, key))


def check_settings(read: Any, path: Path, *, by_name: str = "") -> None:
    """Check that settings say what the file says, and are the same when written and read again."""
    said = read_yaml(path) or {}
    has = read.model_dump(mode="json")
    assert type(read).model_validate(has) == read
    found = dict(leaves(has))
    for at, value in leaves(said):
        if at in found and not (by_name and at[:1] == (by_name,)):
            is_same(found[at], value, at)


def is_same(has: Any, said: Any, at: object) -> None:
    """Fail where a setting is not the value that was written."""
    if isinstance(said, bool) or isinstance(has, bool):
        words = {"true": True, "false": False}
        given = words.get(said.lower(), said) if isinstance(said, str) else said
        word = isinstance(has, bool) and isinstance(said, str)
        assert has is given or word or (said in (0, 1) and has == said), (at, said, has)
    elif isinstance(has, int | float) and said is not None:
        number = Fraction(said) if isinstance(said, str) and "inf" not in said else said
        # A float is the nearest one to what is written.
        same = has == (float(said) if isinstance(has, float) else number)
        assert same, (at, said, has)
    elif isinstance(has, str) and isinstance(said, str):
        assert has == said, (at, said, has)


def check_config(read: Any, path: Path) -> None:
    check_settings(read, path, by_name="profile")


def check_kubeconfig(read: tuple[Kubeconfig, str], path: Path) -> None:
    """Check that the server is that of the context that is in use, by the file."""
    said = yaml.safe_load(path.read_bytes())
    context = next(c["context"] for c in said["contexts"] if c["name"] == said["current-context"])
    cluster = next(c["cluster"] for c in said["clusters"] if c["name"] == context["cluster"])
    assert read[0].host == cluster["server"].rstrip("/")
    assert read[1] == str(context.get("namespace") or "default")


def as_yaml(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def as_lines(records: Any) -> str:
    if not isinstance(records, list):
        records = [records]
    return "".join(json.dumps(record) + "\n" for record in records)


CSV = (
    "job_id,submit_time_s,num_gpus,duration_s,model,batch_size,iterations,gpu_util,memory_gib,"
    "memory_peak_gib,peak_probability,iteration_s\n"
    'a,0,1,100,m,16,100,50,4,8,0.5,1\nb,10.5,2,50,,,,,,,,\n"c,d",1e1,4,2.5e3,m,1,1,100,1,1,1,0.1\n'
)
PHILLY = [
    {
        "jobid": f"j{i}",
        "status": "Pass",
        "vc": "v",
        "user": "u",
        "submitted_time": f"2017-10-0{i + 1} 07:07:09",
        "attempts": [
            {"start_time": "2017-10-09 07:08:00", "end_time": "2017-10-09 07:09:00", "detail": []},
            {
                "start_time": "2017-10-09 07:10:00",
                "end_time": "2017-10-09 07:20:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"][: i + 1]}],
            },
            {"start_time": None, "end_time": None, "detail": []},
        ],
    }
    for i in range(3)
]
ALIBABA = (
    "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    "a,worker,2.0,Terminated,1,20,600,29,50,V100\n"
    "b,ps,1,Running,5,25,0,0,,\n"
    "c,worker,1,Terminated,5,25,0,0,200,T4\n"
)
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,"
    "submit_time,start_time,end_time,duration,queue\n"
    "1,u,v,4,8,1,COMPLETED,2020-01-01 00:00:00,2020-01-01 00:00:10,2020-01-01 00:01:00,50,10\n"
    "2,u,v,0,8,1,COMPLETED,2020-01-02 00:00:00,x,y,50.5,10\n"
    "3,u,v,1,8,1,FAILED,2020-01-03T00:00:00+02:00,x,y,7,10\n"
)
MATRIX = {
    "v100": {
        "('a', 1)": {"null": 1.5, "('a', 1)": [0.5, 0.5], "('b', 1)": [0.5, 0.25]},
        "('b', 1)": {"null": 1.0, "('a', 1)": [0.25, 0.5], "('b', 1)": [0, 0]},
        "('a', 2)": {"null": 3.0},
        "('a', 4)": {"null": 5},
    },
    "v100_unconsolidated": {"('a', 2)": {"null": 2.0}, "('a', 4)": {"null": 3.0}},
    "k80": {"('a', 1)": {"null": 0.1}},
}
CONFIG = {
    "api": "memory",
    "namespace": "tandem-system",
    "profile": "tandem",
    "log_level": "INFO",
    "queue": {
        "min_run_s": 30,
        "reserve_after_s": 600.5,
        "max_preemptions_per_hour": 4,
        "quotas": [{"namespace": "a", "gpus": 4, "max_gpus": 8}],
    },
    "admission": {"agent_port": 9405, "runtime_class": "auto", "host_paths": ["/data/*"]},
    "learning": {"mode": "act"},
    "leader": {"always": True},
    "verbs": {"port": 8880},
    "public": {"host": "0.0.0.0", "port": 8443},
}
PREDICTOR = {
    "host": "0.0.0.0",
    "port": 8090,
    "store": "memory",
    "learned_load": True,
    "upload_bytes": 2**30,
    "sandbox": {"memory_bytes": 2**30, "cpu_s": 10, "wall_s": 15.5, "parallel": 2},
}
AGENT = {
    "node": "n0",
    "interval_s": 10,
    "memory_interval_s": 0.5,
    "shares": 2,
    "guard": {"mode": "evict", "near_full": 0.95},
    "health": {"rescan_s": 60},
}
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "clusters": [
        {"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}},
        {
            "name": "d",
            "cluster": {"server": "http://127.0.0.1:8080/", "insecure-skip-tls-verify": True},
        },
    ],
    "users": [
        {"name": "u", "user": {"token": "abc"}},
        {"name": "v", "user": {"username": "x", "password": "y"}},
    ],
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
        {"name": "two", "context": {"cluster": "d", "user": "v"}},
    ],
}
PROFILES = [profile.wire() for profile in synthetic_profiles(2)[:3]]


def collected() -> list[Any]:
    features = PROFILES[0]["features"]
    solo = {
        "kind": "solo",
        "status": "ok",
        "model": "m",
        "family": "f",
        "sequence": None,
        "batchSize": 4,
        "precision": "fp32",
        "optimizer": "sgd",
        "measured": {"memoryPeakBytes": 2**30, "utilisationPercent": 50.0, "iterationS": 0.1},
    }
    graph = base64.b64encode(zlib.compress(light("squeezenet"))).decode()
    return [
        {"kind": "header", "format": 1, "gpu": {"model": "Tesla T4", "memoryBytes": 16 * 2**30}},
        {"kind": "graph", "model": "m", "sequence": None, "features": features},
        {"kind": "graph", "model": "n", "sequence": None, "onnx": graph},
        {**solo, "key": "m-4"},
        {**solo, "model": "n", "key": "n-4"},
        {
            "kind": "pair",
            "status": "ok",
            "key": "p",
            "first": "m-4",
            "second": "n-4",
            "slowdown": [0.2, 0.3],
        },
    ]


def of_training(path: Path) -> Any:
    """Read a file as `tandem train` and `tandem train interference` do."""
    profiles = read_profiles(path)
    if is_collected(path):
        return profiles, read_measured_pairs(path, PREDICTS)
    return profiles, []


PREDICTS = open_predictor(None)


def check_training(read: tuple[Any, Any], path: Path) -> None:
    for profile in read[0]:
        assert type(profile).model_validate(profile.wire()) == profile
    for pair in read[1]:
        assert pair.first.speed > 0
        assert type(pair).model_validate(pair.wire()) == pair


def a_pair() -> dict[str, Any]:
    load = {
        "utilisationPercent": 50,
        "utilisationP95Percent": 60,
        "memoryBaseBytes": 1,
        "memoryPeakExtraBytes": 1,
        "peakProbability": 0.1,
        "memoryP95Bytes": 2,
        "utilisationSource": "formula",
        "memorySource": "formula",
        "iterationS": 0.1,
        "computeShare": 0.5,
        "bandwidthShare": 0.5,
    }
    side = {"name": "m", "family": "f", "load": load, "speed": 0.8}
    return {"gpuModel": "Tesla T4", "first": side, "second": {**side, "family": "g"}}


KINDS: dict[str, Kind] = {
    "trace, csv": Kind((CSV,), read_trace, check_canonical),
    "trace, philly": Kind((PHILLY,), lambda p: read_trace(p, "philly"), check_philly),
    "trace, alibaba": Kind((ALIBABA,), lambda p: read_trace(p, "alibaba"), check_alibaba),
    "trace, helios": Kind((HELIOS,), lambda p: read_trace(p, "helios"), check_helios),
    "matrix of pairs": Kind((MATRIX,), world_of, check_matrix),
    "policy profile": Kind(
        tuple(read_profile(name).model_dump(mode="json") for name in profile_names()),
        lambda p: read_profile(str(p)),
        check_settings,
        as_yaml,
    ),
    "extender's settings": Kind((CONFIG,), read_config, check_config, as_yaml),
    "predictor's settings": Kind(
        (PREDICTOR,), lambda p: load_config(p, {}), check_settings, as_yaml
    ),
    "agent's settings": Kind((AGENT,), lambda p: read_settings(p, {}), check_settings, as_yaml),
    "kubeconfig": Kind(
        (KUBECONFIG,),
        lambda p: (Kubeconfig(p, None), context_namespace(p)),
        check_kubeconfig,
        as_yaml,
    ),
    "measured profiles": Kind((PROFILES, collected()), of_training, check_training, as_lines),
    "measured pairs": Kind(
        ([a_pair(), a_pair()],), lambda p: ([], read_pairs(p)), check_training, as_lines
    ),
    "json": Kind((PHILLY, MATRIX), read_json, lambda read, p: check_json(read, p)),
    "yaml": Kind((CONFIG, KUBECONFIG), read_yaml, write=as_yaml),
}


def check_json(read: Any, path: Path) -> None:
    assert json.dumps(read, sort_keys=True) == json.dumps(strict_json(path), sort_keys=True)


@pytest.mark.parametrize("name", KINDS)
def test_a_mutated_file_is_read_as_it_stands_or_refused(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    path = tmp_path / "file.yaml"

    def case(rng: random.Random) -> str:
        sound = rng.choice(kind.sound)
        if isinstance(sound, str):
            content = sound.encode()
        else:
            content = kind.write(changed(sound, rng) if rng.random() < 0.6 else sound).encode(
                errors="surrogatepass"
            )
        how = rng.random()
        if how < 0.05:
            content = b"\xef\xbb\xbf" + content
        elif how < 0.1:
            content = content.decode(errors="replace").encode("utf-16")
        elif how < 0.15:
            content = content.replace(b"\n", b"\r\n")
        elif how < 0.6 or isinstance(sound, str):
            content = changed_bytes(content, rng)
        path.write_bytes(content)
        try:
            read = kind.read(path)
        except TandemError:
            return "refused"
        kind.check(read, path)
        return "read"

    Batch(name, 60).run(case)
