"""Mutants of the papers' rules: which scenario tells each damaged system from the whole one.

A mutant changes a profile or a few characters of a rule's code (`mutants.toml`). Code is changed in
memory: the changed module is compiled, and the functions that differ take the new code for as long
as the scenarios run. So one takes milliseconds.
"""

from __future__ import annotations

import gc
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from unittest.mock import patch

import yaml

from proof.mutation.runner import changed
from studies.scenarios.model import Scenario, passes
from tandem.policy.catalog import Profile, load_profile

ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True, eq=False)  # each entry of the list is one of its own
class Mutant:
    """A damage to one rule of a system, `profile`.

    `use` is another profile in its place, `drop` the kinds of constraints that it goes without,
    `change` parts of it by name. Or else `old` is replaced by `new` in `file`, where it stands
    once. `equivalent` says why no scenario can tell.
    """

    profile: str
    rule: str
    fault: str
    use: str = ""
    drop: tuple[str, ...] = ()
    change: Mapping[str, object] | None = None
    file: str = ""
    old: str = ""
    new: str = ""
    equivalent: str = ""

    @property
    def name(self) -> str:
        """A name for people."""
        return f"{self.profile}, {self.rule}: {self.fault}"

    def damaged(self) -> Profile:
        """Return the profile as the mutant has it."""
        profile = load_profile(self.use or self.profile)
        values = profile.model_dump(mode="json")
        values["constraints"] = [c for c in values["constraints"] if c["kind"] not in self.drop]
        for path, value in (self.change or {}).items():
            part, _, field = path.partition(".")
            if not field:
                values[part] = value
            elif isinstance(values[part], dict):
                values[part][field] = value
            else:
                kind, _, field = field.partition(".")
                (policy,) = (each for each in values[part] if each["kind"] == kind)
                policy[field] = value
        return Profile.model_validate(values)


def mutants(listed: Path = LISTED) -> list[Mutant]:
    """Return the mutants of the list."""
    found = []
    for entry in tomllib.loads(listed.read_text())["mutant"]:
        values = dict(entry)
        values["drop"] = tuple(values.get("drop", ()))
        if "change" in values:
            values["change"] = yaml.safe_load(values["change"])
        found.append(Mutant(**values))
    return found


class Live:
    """The functions of the policies and the simulator in memory, by file, name and line."""

    def __init__(self) -> None:
        self._of: dict[str, dict[tuple[str, int], list[FunctionType]]] = defaultdict(
            lambda: defaultdict(list)
        )
        ours = tuple(str(ROOT / "tandem" / name) for name in ("policy", "simulator"))
        gc.unfreeze()  # a service that ran in this process hides what was there before it
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename.startswith(ours):
                code = found.__code__
                self._of[code.co_filename][code.co_qualname, code.co_firstlineno].append(found)

    @contextmanager
    def damaged(self, mutant: Mutant) -> Iterator[None]:
        """Let the mutant's code run.

        Raises:
            ValueError: what it replaces is not in its file exactly once, or runs at import.
        """
        path = str(ROOT / mutant.file)
        text = Path(path).read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{text.count(mutant.old)} times in {mutant.file}: {mutant.old}")
        before = compile(text, path, "exec", dont_inherit=True)
        after = compile(text.replace(mutant.old, mutant.new), path, "exec", dont_inherit=True)
        swaps: list[tuple[FunctionType, CodeType]] = []
        for old, new in changed(before, after):
            live = self._of[path].get((old.co_qualname, old.co_firstlineno), [])
            swaps += [(function, new) for function in live]
        if not swaps:
            raise ValueError(f"no function that runs changes: {mutant.name}")
        originals = [function.__code__ for function, _ in swaps]
        try:
            for function, code in swaps:
                function.__code__ = code
            yield
        finally:
            for (function, _), code in zip(swaps, originals, strict=True):
                function.__code__ = code


def caught_by(mutant: Mutant, scenarios: Sequence[Scenario], live: Live) -> list[Scenario]:
    """Return the scenarios of the mutant's system that it fails."""
    own = [scenario for scenario in scenarios if scenario.profile == mutant.profile]
    damaged = mutant.damaged()
    with live.damaged(mutant) if mutant.file else nullcontext(), in_python():
        return [scenario for scenario in own if not passes(scenario, damaged)]


@contextmanager
def in_python() -> Iterator[None]:
    """Let [Tiresias]' dispatch decide in Python, whose code the mutants change."""
    with patch("tandem.policy.dispatch.preempt.front", lambda *_: None):
        yield
