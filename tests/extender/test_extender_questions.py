"""Ten questions of users and operators: the page, the CLI and kubectl answer each in two steps.

The commands are those of the table in docs/cli.md. They run against the extender's own views of a
small cluster, and against the objects of that cluster as kubectl shows them.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml
from click.testing import Result
from extender_builders import NOW, Object, gpu, gpu_job, gpu_node, load, pod
from fastapi import FastAPI
from question_table import commands, named, table
from test_extender_status import Site, slowdown, view
from typer.testing import CliRunner

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.quotas.config import Quota
from scheduler_extender.serving.api import read_router
from scheduler_extender.serving.readers import everybody
from scheduler_extender.serving.status import assets
from scheduler_extender.serving.status.publisher import Publisher
from scheduler_extender.serving.status.routes import status_router
from scheduler_extender.serving.status.sources import local_changes
from tandem.cli.main import build_app
from tandem.cli.reach import Reader
from tandem.contracts.crds import DEFINITIONS
from tandem.contracts.resources import GPUNodeStatus
from tandem.errors import TandemError
from tandem.kube.tunnel import Answer
from tandem.policy.catalog import load_profile
from tandem.reasons.causes import Cause, Reason
from tandem.reasons.words import in_full

WAITS = (
    Cause(Reason.NEEDS_GPUS, amount="1 GPU", value=0, bound=3),
    Cause(Reason.PLACES_TAKEN, gpus=2, value=2, bound=2),
    Cause(Reason.MEMORY, gpus=1, value=17.4, bound=15.6),
)


class Recorded(Site):
    """A site that keeps the objects of its API server, by plural and name."""

    def __init__(self, quotas: list[tuple[Quota, int, float]]) -> None:
        super().__init__(quotas)
        self.objects: dict[str, dict[tuple[str, str], Object]] = {}
        upsert = self.state.upsert

        def recorded(plural: str, body: Object) -> None:
            meta = body["metadata"]
            self.objects.setdefault(plural, {})[meta.get("namespace", ""), meta["name"]] = body
            upsert(plural, body)

        self.state.upsert = recorded  # type: ignore[method-assign]


def use(job: str, namespace: str = "ml") -> Object:
    return {"namespace": namespace, "pod": job, "uid": f"uid-{namespace}-{job}"}


def counted(node: Object) -> Object:
    """Return a GPUNode with the counts that an agent writes."""
    return node | {"status": GPUNodeStatus.model_validate(node["status"]).wire()}


@pytest.fixture(scope="module")
def site() -> Recorded:
    """One GPU is shared, one has a job by itself, one is idle."""
    found = Recorded([(Quota(namespace="ml", gpus=1), 3, 0.0)])
    state = found.state
    a, b = gpu("a", pods=[use("bert"), use("vgg", "other")]), gpu("b", pods=[use("solo")])
    state.upsert("gpunodes", counted(gpu_node("n0", a, b)))
    state.upsert("gpunodes", counted(gpu_node("n1", "c")))
    placed = {"pods": [{"pod": "bert", "uid": "uid-ml-bert", "node": "n0", "gpus": ["a"]}],
              "madeAt": rfc3339(NOW), "deadline": rfc3339(NOW + 30)}  # fmt: skip
    found.run("bert", "n0", "a", observed=slowdown(0.25, "vgg"), plan=placed)
    found.run("vgg", "n0", "a", namespace="other", observed=slowdown(0.1))
    found.run("solo", "n0", "b")
    waiting = gpu_job("job-gpt", namespace="ml", job_load=load(17, 1, 0.2))
    waiting["spec"]["demand"]["model"] = "gpt2"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gpt", "uid": "w-gpt"}
    waiting["spec"]["workload"] = owner
    waiting["status"] |= {
        "phase": "Queued",
        "reason": "Unschedulable",
        "message": in_full(WAITS),
        "causes": [each.wire() for each in WAITS],
        "foundAt": rfc3339(NOW - 12),
        "position": 0,
        "queuedAt": rfc3339(NOW - 720),
        "waitingSince": rfc3339(NOW - 720),
        "expectedStart": {
            "earliest": rfc3339(NOW + 86400 * 3650),
            "latest": rfc3339(NOW + 86400 * 3651),
            "asOf": rfc3339(NOW),
        },
    }
    state.upsert("gpujobs", waiting)
    waits = pod("gpt-x7k2p", namespace="ml")
    waits["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    state.upsert("pods", waits)
    stopped = gpu_job("job-old", namespace="ml", job_load=load(4))
    stopped["status"] |= {
        "phase": "Suspended",
        "reason": "Preempted",
        "message": "it gave up its GPUs for ml/job-bert, which has had less service",
        "queuedAt": rfc3339(NOW - 7200),
        "preemption": {
            "by": "ml/job-bert",
            "method": "suspend",
            "requestedAt": rfc3339(NOW - 60),
        },
        "decisions": [
            {
                "at": rfc3339(NOW - 60),
                "what": "Suspended",
                "why": "job-bert has had 0 GPU-seconds of service and this job 7200",
            }
        ],
    }
    state.upsert("gpujobs", stopped)
    found.objects["modelprofiles"] = {("ml", "gpt2"): {"metadata": {"name": "gpt2"}}}
    return found


@pytest.fixture(autouse=True)
def service(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands read from the extender's routes in this process."""

    async def answer(path: str, query: dict[str, str]) -> httpx.Response:
        app = FastAPI()
        publisher = Publisher(local_changes(site.changes))
        app.include_router(status_router(publisher, everybody, None, None))
        app.include_router(read_router(site.state, load_profile("tandem").pipeline()))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path, params=query)

    def answered(_: Reader, method: str, path: str, query: dict[str, str], *body: object) -> Answer:
        assert method == "GET"
        found = asyncio.run(answer(path, query))
        return Answer(found.status_code, found.content)

    monkeypatch.setattr(Reader, "_answer", answered)
    monkeypatch.setattr(Reader, "own_namespace", "ml")
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe


def run(*args: str) -> Result:
    answer = CliRunner().invoke(build_app(), list(args))
    assert answer.exit_code == 0, answer.exception
    return answer


def lines(*args: str) -> dict[str, str]:
    """Return what `tandem why` says, by the label of its line."""
    said = {}
    for line in run(*args).stdout.splitlines()[1:]:
        label, words = line[2:23].strip(), line[23:]
        said.setdefault(label or "more", words)
    return said


def test_why_does_my_job_wait() -> None:
    """By the name of the Job, of the GPUJob, or of the pod."""
    for name in ("gpt", "job-gpt", "ml/gpt", "gpt-x7k2p"):
        said = run("why", name).stdout
        assert "0 of 3 GPUs can take it now" in said
        assert "17.4 GiB needed, 15.6 GiB there, 1.8 GiB too little" in said
        assert re.search(r"found out +\S+ ago, at \d\d:\d\d:\d\d UTC", said)


def test_when_will_it_start() -> None:
    assert lines("why", "gpt")["will start"].startswith("in ")
    queue = run("queue").stdout
    assert "job-gpt" in queue
    assert ".." in queue


def test_what_slows_it_down() -> None:
    said = lines("why", "bert")
    assert said["slowed down"].startswith("25%")
    assert said["shares with"] == "other/job-vgg"


def test_which_gpus_are_idle() -> None:
    found = json.loads(run("gpus", "--idle", "--json").stdout)["gpus"]
    assert [(each["node"], each["gpu"]) for each in found] == [("n1", "c")]


def test_did_sharing_pay() -> None:
    said = run("sharing").stdout
    # 1 / 1.25 + 1 / 1.1 - 1
    assert "It pays (measured): without it the same work needs 0.7 GPUs more." in said
    assert "job-bert" in said


def test_why_was_it_stopped() -> None:
    said = lines("why", "job-old")
    assert said["stopped"].startswith("suspended at")
    assert said["stopped"].endswith(": ml/job-bert")
    assert any("7200" in words for words in said.values())


def test_what_load_was_predicted() -> None:
    said = lines("why", "bert")
    assert "GiB at most" in said["predicted"]
    assert "% utilisation" in said["predicted"]
    assert said["limit"].startswith("15.4 GiB of each GPU"), "14 GiB and a tenth"
    assert "limit" not in lines("why", "gpt"), "it is not bound yet"
    assert "limit: 15.4 GiB of each GPU" in run("explain", "ml/bert").stdout


def test_is_my_model_known() -> None:
    assert "gpt2" in lines("why", "gpt")["model"]
    assert "none is named" in lines("why", "bert")["model"]


def test_which_namespace_is_over_quota() -> None:
    first = json.loads(run("quotas", "--json").stdout)["rows"][0]
    assert (first["namespace"], first["overQuota"]) == ("ml", True)
    assert run("quotas").stdout.count("over quota") == 1


def test_what_is_broken_is_asked_of_the_doctor() -> None:
    """`tests/cli/test_cli_doctor.py` has the answers."""
    answer = CliRunner().invoke(build_app(), ["doctor", "--help"])
    assert "what is wrong" in answer.stdout


def test_a_job_that_is_not_there_is_an_error_that_says_what_to_do() -> None:
    answer = CliRunner().invoke(build_app(), ["why", "nothing-like-that"])
    assert isinstance(answer.exception, TandemError)
    assert "ml/nothing-like-that" in answer.exception.message
    assert "tandem jobs" in answer.exception.hint


def test_a_job_of_another_namespace_is_named_with_it() -> None:
    answer = CliRunner().invoke(build_app(), ["why", "vgg"])
    assert isinstance(answer.exception, TandemError)
    assert answer.exception.message.startswith("there is no job ml/vgg")
    assert answer.exception.hint == "in another namespace: tandem why other/job-vgg"
    assert "job-vgg" in run("why", "other/job-vgg").stdout


def test_the_views_have_json() -> None:
    assert json.loads(run("why", "gpt", "--json").stdout)["name"] == "job-gpt"
    assert json.loads(run("queue", "--json").stdout)["total"] == 2
    assert json.loads(run("sharing", "--json").stdout)["gpus"] == 1
    found: dict[str, Any] = json.loads(run("top", "--json").stdout)
    assert found["overview"]["gpus"]["total"] == 3
    assert found["queue"]["total"] == 2


def test_top_draws_what_the_extender_answers() -> None:
    said = run("top").stdout
    assert "3 on 2 nodes" in said
    assert "ml/job-bert (+25%), other/job-vgg (+10%)" in said
    assert "ml/job-gpt" in said


def test_a_long_queue_is_read_page_by_page_up_to_the_limit() -> None:
    assert len(json.loads(run("queue", "--json", "--limit", "1").stdout)["jobs"]) == 1
    assert "1 more wait" in run("queue", "--limit", "1").stdout


# --- the table of docs/cli.md -------------------------------------------------------------------

SCRIPTS = "".join(path.read_text() for path in sorted(assets.FOLDER.glob("*.js")))


class Kubectl:
    """`kubectl get`, by the columns of our definitions, and `describe`, of recorded objects."""

    def __init__(self, objects: dict[str, dict[tuple[str, str], Object]]) -> None:
        self.objects = objects
        self.columns = {each.plural: each.columns for each in DEFINITIONS}

    def run(self, command: str) -> str:
        program, verb, *words = shlex.split(command)
        assert program == "kubectl"
        if verb == "describe":
            kind, name = words
            (found,) = (o for (_, n), o in self.objects[f"{kind}s"].items() if n == name)
            return yaml.safe_dump(found, sort_keys=False, width=1000)
        assert verb == "get"
        plural, *options = words
        everywhere, wide = "-A" in options, "wide" in options
        columns = [each for each in self.columns[plural] if wide or not each.wide]
        lines = []
        for (namespace, name), found in sorted(self.objects.get(plural, {}).items()):
            if namespace in ("", "ml") or everywhere:
                values = {each.name: self._value(found, each.path) for each in columns}
                shown = {"Namespace": namespace, "Name": name, **values}
                lines.append(" ".join(f"{key}={value}" for key, value in shown.items()))
        return "\n".join(lines)

    def _value(self, found: Any, path: str) -> Any:
        """Return what a simple JSONPath leads to; '' where that is nothing."""
        for name, index in re.findall(r"\.(\w+)(?:\[(\d+)\])?", path):
            found = (found or {}).get(name)
            if index:
                found = (found or [None])[int(index)]
        return "" if found is None else found


@dataclass(frozen=True)
class Truth:
    """What is true of the cluster: words that each way must say, and what the table leaves open."""

    cli: tuple[str, ...]
    kubectl: tuple[str, ...]
    page: tuple[str, ...]
    views: tuple[tuple[str, ...], ...]  # of the page, on the way to the answer
    names: dict[str, str] = field(default_factory=dict)


EARLIEST, LATEST = rfc3339(NOW + 86400 * 3650), rfc3339(NOW + 86400 * 3651)
NO_ROOM = "17.4 GiB needed, 15.6 GiB there, 1.8 GiB too little"
GPT, BERT, OLD = ({"JOB": name, "job-NAME": f"job-{name}"} for name in ("gpt", "bert", "old"))
GPT_VIEW, BERT_VIEW, OLD_VIEW = (("job", "ml", f"job-{name}") for name in ("gpt", "bert", "old"))
ASKED = {
    "Why does my job wait?": Truth(
        ("why it waits", NO_ROOM), (NO_ROOM,), (NO_ROOM,), (("overview",), GPT_VIEW), GPT
    ),
    "When will it start?": Truth(
        ("will start           in ",),
        ("job-gpt Phase=Queued Queue= Ahead=0", f"Expected={EARLIEST} Expected-By={LATEST}"),
        (EARLIEST, LATEST), (("overview",), GPT_VIEW), GPT,
    ),
    "What slows it down?": Truth(
        ("slowed down          25%", "shares with          other/job-vgg"),
        ("Slowdown=0.25", "First-Node=n0", "pod: vgg"),
        ('"value": 0.25', '"job-vgg"'), (("jobs",), BERT_VIEW), {**BERT, "NODE": "n0"},
    ),
    "Which GPUs are idle?": Truth(
        ("n1", "n1/0", "0/2"),
        ("Name=n0 GPUs=2 Healthy=2 Idle=0", "Name=n1 GPUs=1 Healthy=1 Idle=1", "uuid: c"),
        ('"idle": 1', '"gpu": "c"'), (("overview",), ("gpus", "state=idle")), {"NODE": "n1"},
    ),
    "Did sharing pay?": Truth(
        ("It pays (measured): without it the same work needs 0.7 GPUs more.",),
        ("Namespace=ml Name=job-bert", "Slowdown=0.25", "Namespace=other Name=job-vgg",
         "Slowdown=0.1"),
        ('"gainGpus": 0.7',), (("overview",),),
    ),
    "Why was it stopped?": Truth(
        ("suspended at", "for ml/job-bert", "this job 7200"),
        ("by: ml/job-bert", "method: suspend", "this job 7200"),
        ("ml/job-bert", "this job 7200"), (("jobs",), OLD_VIEW), OLD | {"JOB": "job-old"},
    ),
    "What load was predicted?": Truth(
        ("14.0 GiB at most (formula), 40 % utilisation (formula)",),
        (f"memoryP95Bytes: {14 * 2**30}", "utilisationPercent: 40"),
        (f'"memoryP95Bytes": {14 * 2**30}', '"utilisationPercent": 40'), (("jobs",), BERT_VIEW),
        BERT,
    ),
    "Is my model known?": Truth(
        ("gpt2 is known",), ("Model=gpt2", "Namespace=ml Name=gpt2"),
        ('"model": "gpt2"', '"source": "formula"'), (("models",), ("model", "ml", "gpt2")), GPT,
    ),
    "Which namespace is over quota?": Truth(
        ("over quota",), (), ('"namespace": "ml"', '"overQuota": true'), (("overview",),)
    ),
    "What is broken?": Truth((), (), (), (("overview",), ("gpus", "state=quarantined"))),
}  # fmt: skip


def test_the_page_has_ten_questions_with_at_most_two_steps_each() -> None:
    found = table()
    assert list(found) == list(ASKED)
    assert len(found) == 10
    for question, (page, command, kubectl) in found.items():
        assert 1 <= len(commands(command, "tandem")) <= 2, question
        assert 1 <= len(commands(kubectl, "kubectl")) <= 2, question
        assert len(page.split(" > ")) <= 2, question
        for heading in re.findall(r"\*([^*]+)\*", page):
            assert heading in SCRIPTS, f"the page has no {heading}"
        assert len(ASKED[question].views) <= 2, question


@pytest.mark.parametrize("question", [each for each in ASKED if ASKED[each].cli])
def test_a_command_answers(question: str) -> None:
    truth = ASKED[question]
    for command in commands(table()[question][1], "tandem"):
        said = run(*shlex.split(named(command, truth.names))[1:]).stdout
        if command == "tandem queue":
            assert "job-gpt" in said
            continue
        for words in truth.cli:
            assert words in said, said


@pytest.mark.parametrize("question", [each for each in ASKED if ASKED[each].kubectl])
def test_kubectl_alone_answers(site: Recorded, question: str) -> None:
    truth, kubectl = ASKED[question], Kubectl(site.objects)
    cell = table()[question][2]
    ours = [c for c in commands(cell, "kubectl") if " get pods " not in c]
    said = "\n".join(kubectl.run(named(command, truth.names)) for command in ours)
    for words in truth.kubectl:
        assert words in said, said


def shown(site: Recorded, question: str) -> str:
    """Return the data of the page's views on the way to an answer."""
    site.follow()
    documents = []
    for name, *path in ASKED[question].views:
        given = dict(each.split("=") for each in path if "=" in each)
        objects = [each for each in path if "=" not in each]
        documents.append(view(site.cluster, name, *objects, **given))
    return json.dumps(documents)


@pytest.mark.parametrize("question", [each for each in ASKED if ASKED[each].page])
def test_the_data_of_the_page_answer(site: Recorded, question: str) -> None:
    said = shown(site, question)
    for words in ASKED[question].page:
        assert words in said, said


def test_what_is_broken_is_seen_on_the_page_and_with_kubectl() -> None:
    """`tests/cli/test_cli_doctor.py` has the answers of the command."""
    site = Recorded([])
    sick = gpu("b", health="Quarantined", healthReason="XID 79")
    site.state.upsert("gpunodes", counted(gpu_node("n0", "a", sick)))
    question = "What is broken?"
    said = shown(site, question)
    assert '"kind": "quarantined", "count": 1' in said
    assert "XID 79" in said
    (command, _) = commands(table()[question][2], "kubectl")
    assert "Name=n0 GPUs=2 Healthy=1 Idle=1" in Kubectl(site.objects).run(command)
