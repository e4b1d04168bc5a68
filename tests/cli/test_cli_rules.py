"""One rule for every command: how it finds the cluster, what it prints, how it completes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from command_tree import leaves, whole_tree


class Kind(NamedTuple):
    """What a command has."""

    cluster: bool  # it reaches one: --kubeconfig, --context
    namespace: bool = False  # what it is about has a namespace: -n
    output: tuple[str, ...] = ("json",)  # of -o; each of them has --json, too


LIST, ONE, REPORT = ("wide", "json", "name"), ("json", "name"), ("json",)
#: Every command, but for the tools of a source tree (`controlplane`) and PyTorch's (`profile`).
RULES = {
    "config check": Kind(False),
    "doctor": Kind(True),
    "explain": Kind(True, True, ONE),
    "gpus": Kind(True, False, LIST),
    "hold": Kind(True, True, ONE),
    "jobs": Kind(True, True, LIST),
    "model delete": Kind(True, True, ONE),
    "model list": Kind(True, True, LIST),
    "model push": Kind(True, True, ONE),
    "model show": Kind(True, True, ONE),
    "page": Kind(True),
    "predict": Kind(True, True),
    "prioritize": Kind(True, True, ONE),
    "queue": Kind(True, True, LIST),
    "quotas": Kind(True, True, LIST),
    "report": Kind(True, True),
    "resume": Kind(True, True, ONE),
    "sharing": Kind(True, True),
    "top": Kind(True, True),
    "train": Kind(True),
    "train interference": Kind(False),
    "train rollback": Kind(False),
    "what-if": Kind(True, True),
    "why": Kind(True, True, ONE),
}
#: `demo` has no -o, since --json is its only form; --json of `simulate` names a file.
OTHERS = {"demo": {"--json"}, "simulate": {"--json"}}
TOOLS = ("controlplane", "profile")
#: What is completed by names: of the cluster, or of a choice that Typer itself completes.
NAMED = {"--context", "--namespace", "--node", "--model", "--gpu", "JOB", "POD", "NAME"}


def commands() -> dict[str, Any]:
    """Return the commands that do something by themselves."""
    return {
        " ".join(path): command
        for path, command in leaves(whole_tree())
        if path[0] not in TOOLS
        and (not hasattr(command, "commands") or getattr(command, "invoke_without_command", False))
    }


def options(command: Any) -> dict[str, Any]:
    return {option: each for each in command.params for option in each.opts}


def test_every_command_is_in_the_table() -> None:
    assert commands().keys() == RULES.keys() | OTHERS.keys()


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_command_keeps_the_rule(name: str) -> None:
    kind, command = RULES[name], commands()[name]
    found = options(command)
    assert ("--kubeconfig" in found, "--context" in found) == (kind.cluster, kind.cluster)
    if kind.cluster:
        assert found["--context"].help == "A context of the kubeconfig file."
    assert ("-n" in found) is kind.namespace
    assert found.get("-n") is found.get("--namespace")
    assert "--json" in found
    assert "-o" in found
    assert found["-o"] is found["--output"]
    assert tuple(found["-o"].type_descriptor.choices) == kind.output


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_others_have_json(name: str) -> None:
    assert OTHERS[name] <= options(commands()[name]).keys()


def test_names_complete_everywhere() -> None:
    missing = []
    for name, command in commands().items():
        for each in command.params:
            words = {*each.opts, (each.metavar or each.name or "").rpartition("]")[2].upper()}
            if words & NAMED and "push" not in name and each._custom_shell_complete is None:
                missing.append((name, sorted(words)))
    assert not missing


def test_an_option_has_one_meaning() -> None:
    """The same letter names the same option in all commands."""
    letters: dict[str, set[str]] = {}
    for command in commands().values():
        for each in command.params:
            for short in (option for option in each.opts if not option.startswith("--")):
                longs = [option for option in each.opts if option.startswith("--")]
                if short.startswith("-"):
                    letters.setdefault(short, set()).update(longs)
    assert letters == {"-n": {"--namespace"}, "-o": {"--output"}, "-w": {"--watch"}}
