"""Arguments of every command: an exit code of 0, 1 or 2, words, and never a traceback.

Commands run in this process by the entry point of the CLI. What builds, measures or serves ends
where its arguments have been read.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_tree import leaves, whole_tree
from fuzz_batch import WATCHDOG, Batch
from mutators import changed_bytes
from predictor_graphs import light
from test_fuzz_files import CSV, KUBECONFIG, MATRIX, PHILLY, as_lines, collected

from node_agent import __main__ as agent
from tandem.cli import complete, main, reach
from tandem.errors import UsageError

pytestmark = [pytest.mark.slow, WATCHDOG]

#: Typer's own, which it does not publish.
Command = Any
#: Nothing listens there.
NOWHERE = "http://127.0.0.1:9"
_STOPPED = ("demo", "controlplane", "profile")
_NUMBERS = (
    "0",
    "1",
    "2",
    "-1",
    "10",
    "1e3",
    "nan",
    "inf",
    "-inf",
    "1_0",
    "١",
    "9" * 400,
    "9" * 5000,
    "0x10",
    "",
    "1.5",
    "2147483648",
    "NaN",
    " 1",
    "1e999",
    "-0",
)
_TEXTS = (
    "",
    "a",
    "ns/job",
    "a/b/c",
    "/",
    "..",
    "é",
    "\udc80",
    "[red]x[/red]",
    "[/]",
    "-",
    "--",
    "x" * 300,
    "a\nb",
    "\x1b[2J",
    "%s",
    "{}",
    "default",
    "job-a",
    "team-a",
    "'",
    '"',
    "a=b",
    "svg",
    "png",
    "none",
)
_WORDS = (
    "V100",
    "T4",
    "amp",
    "bf16",
    "adam",
    "sgd",
    "pytorch",
    "ddp",
    "csv",
    "philly",
    "alibaba",
    "helios",
    "tandem",
    "fifo",
    "tiresias-l",
    "order.slice_s=60",
    "order.slice_s=nan",
    "order.slice_s=[",
    "max_jobs_per_gpu=1e9",
    "2x2:V100",
    "1x1",
    "0x1",
    "100000000x8:V100",
    "9" * 5000 + "x1",
    "1x1:é",
    "2x4:A100-80G",
    "2x4:NOPE",
    "1x1:V100-99999999999999999999G",
    "12Gi",
    "-1Gi",
    "١Gi",
    "load",
    "interference",
)
_SERVERS = (
    NOWHERE,
    "http://127.0.0.1:99999",
    "127.0.0.1:9",
    "nonsense",
    "https://[::",
    "http://",
    "ftp://127.0.0.1:9",
    "http://127.0.0.1:9/\udc80",
    "http://user:pass@127.0.0.1:9",
    "unix:/x",
    "",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of every sort, and no way to any cluster."""
    here = tmp_path / "here"
    here.mkdir()
    texts = {
        "trace.csv": CSV,
        "philly.json": json.dumps(PHILLY),
        "truth.json": json.dumps(MATRIX),
        "empty": "",
        "config.yaml": "api: memory\n",
        "profiles.jsonl": as_lines(collected()),
        "profile.yaml": "name: x\nconstraints: []\n",
        "broken.yaml": "a: [",
        "kubeconfig": yaml.safe_dump(KUBECONFIG).replace("https://10.0.0.1:6443", NOWHERE),
    }
    for name, text in texts.items():
        (here / name).write_text(text)
    (here / "graph.onnx").write_bytes(light("squeezenet"))
    (here / "folder").mkdir()
    monkeypatch.chdir(here)
    for name in list(os.environ):
        if (
            name.startswith(("TANDEM_S", "TANDEM_T", "TANDEM_A", "TANDEM_C"))
            and not name.startswith(("TANDEM_SEED", "TANDEM_CHAOS"))  # of the run itself
        ):
            monkeypatch.delenv(name)
    for name in (
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(here / "kubeconfig"))
    monkeypatch.setenv("TANDEM_PREDICTOR", NOWHERE)
    monkeypatch.setenv("HOME", str(here))

    def interrupted(seconds: float) -> None:
        if not 0 <= seconds < 1e9:
            raise ValueError("no length of time")
        raise KeyboardInterrupt

    monkeypatch.setattr(reach, "sleep", interrupted)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    return here


@pytest.fixture(scope="module")
def tandem() -> Command:
    """The commands, of which some do nothing after their arguments have been read."""
    command = whole_tree()
    for path, each in leaves(command):
        if path[0] in _STOPPED:
            each.callback = lambda *_, **__: None
    return command


def a_value(parameter: Any, rng: random.Random, folder: Path) -> str:
    """Return a value for an option or an argument, often one of the sort that it takes."""
    name = (parameter.name or "") + " ".join(getattr(parameter, "opts", ()))
    kind = parameter.type_descriptor.annotation
    if rng.random() < 0.3:
        return rng.choice((*_TEXTS, *_NUMBERS, *_WORDS))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str(rng.choice(list(kind)).value)
    if "server" in name:
        return rng.choice(_SERVERS)
    if "cluster" in name and kind is str:
        return rng.choice(("2x2:V100", "1x4:V100", "2x2:V100", *[w for w in _WORDS if "x" in w]))
    if "profile" in name and kind is str:
        return rng.choice(("tandem", "fifo", "tiresias-l", "profile.yaml", "broken.yaml"))
    if kind in (int, float):
        return rng.choice(_NUMBERS)
    if kind is Path or "truth" in name:
        files = sorted(each.name for each in folder.iterdir())
        return rng.choice([*files, "absent", "folder/new"])
    return rng.choice((*_TEXTS, *_WORDS))


def an_invocation(
    path: tuple[str, ...], command: Command, rng: random.Random, folder: Path
) -> list[str]:
    words = list(path)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            if rng.random() < 0.8:
                words.append(a_value(parameter, rng, folder))
        elif rng.random() < (0.6 if parameter.name in ("trace", "cluster") else 0.15):
            option = rng.choice(parameter.opts)
            if "completion" in option:
                continue
            words.append(option)
            if not getattr(parameter, "is_flag", False):
                words.append(a_value(parameter, rng, folder))
    if rng.random() < 0.15:
        words.insert(
            rng.randrange(len(words) + 1),
            rng.choice(("--nope", "-Z", "--json", "--help", "--", "", "extra")),
        )
    if rng.random() < 0.05:
        rng.shuffle(words)
    if rng.random() < 0.05:
        at = rng.randrange(len(words))
        words[at] = changed_bytes(words[at].encode(errors="surrogatepass"), rng).decode(
            errors="replace"
        )
    return [word.replace("\x00", "") for word in words]  # no process can be given that


def called(run: Callable[[], Any]) -> tuple[int, str, str]:
    """Return the exit code of a command, and what it printed; others than exits are faults."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run()
        except SystemExit as ended:
            code = ended.code
    if isinstance(code, str):
        err.write(code)
        code = 1
    return int(code or 0), out.getvalue(), err.getvalue()


def json_of(out: str, words: list[str]) -> None:
    if not out and {"-w", "--watch"} & set(words):
        return  # what is away may come back
    try:
        json.loads(out)
    except ValueError:
        raise AssertionError(f"no JSON for {words}: {out[:200]!r}") from None


def test_arguments_end_in_words_and_an_exit_code(
    folder: Path, tandem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = sorted(leaves(tandem), key=lambda each: each[0])
    monkeypatch.setattr(main, "build_app", lambda: tandem)

    def case(rng: random.Random) -> str:
        path, command = rng.choice(commands)
        words = an_invocation(path, command, rng, folder)
        if any("completion" in word for word in words):
            return "not tried"
        monkeypatch.setattr(sys, "argv", ["tandem", *words])
        code, out, err = called(lambda: main.main("tandem"))
        assert code in (0, 1, 2), (code, words)
        assert "Traceback" not in out + err, words
        if code:
            assert (out + err).strip(), f"no words for {words}"
        elif "--json" in words and path[0] not in (*_STOPPED, "simulate") and "--help" not in words:
            json_of(out, words)
        return f"exit code {code}"

    Batch("arguments of commands", 60).run(case)


def test_what_is_typed_is_completed_or_not(folder: Path, tandem: Command) -> None:
    names = [path for path, _ in leaves(tandem)]

    def case(rng: random.Random) -> str:
        words = [
            *rng.choice(names),
            *rng.choices((*_TEXTS, *_WORDS, "--", "-n", "--namespace", "--k"), k=rng.randrange(4)),
        ]
        code, out, err = called(lambda: complete.kubectl(words))
        assert code == 0
        assert not err
        assert out.endswith(":4\n")
        return "completed" if out.count("\n") > 1 else "nothing"

    Batch("words that a shell completes", 20).run(case)


def test_arguments_of_the_agent_end_in_words(folder: Path) -> None:
    options = [action for action in agent.parser()._actions if action.option_strings]

    def case(rng: random.Random) -> str:
        words = []
        for action in rng.sample(options, rng.randint(1, 5)):
            words.append(rng.choice(action.option_strings))
            if action.nargs != 0:
                values = (
                    *_NUMBERS,
                    *_TEXTS,
                    "n0",
                    "0.0.0.0:9405",
                    "[::]:1",
                    ":²",
                    "config.yaml",
                    "INFO",
                )
                words.append(rng.choice(values))

        def read() -> int:
            given = agent.parser().parse_args([word.replace("\x00", "") for word in words])
            try:
                settings = agent._settings(given)
                host, port = agent._address(given.listen)
            except UsageError as error:
                print(error.message, file=sys.stderr)
                return 2
            assert 0 <= port <= 65535
            assert given.shares is None or settings.shares == given.shares
            assert host == given.listen.rpartition(":")[0].strip("[]")
            return 0

        code, out, err = called(read)
        assert code in (0, 2)
        assert "Traceback" not in out + err
        assert code == 0 or err
        return f"exit code {code}"

    Batch("arguments of the agent", 60).run(case)
