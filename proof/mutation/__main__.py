"""Mutation tests of the code that decides about safety: docs/evidence/mutants.md.

A mutant is the code with one small change, made by the operators of mutmut. The fast tests that
reach the changed line run until one fails (`runner.py`). Of each module a sample is tried,
drawn by a seed: the same one as long as the module does not change. The faults of
`hand_mutants.toml` are all tried.

Everything that was learned is kept in `.out/mutants`: which test reaches which line, by the content
of the test's file, and what became of each mutant, by the content of its function and of the tests.
A run that was stopped goes on where it was.

    python -m proof.mutation --only guard --only ledger
    python -m proof.mutation --only hand
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.tables import commit
from proof.mutation.page import outcome_of, page
from proof.mutation.reach import Near, Reach, near_files, reach
from proof.mutation.results import Results
from proof.mutation.runs import OUT, Run, answers
from proof.mutation.sources import HAND, ROOT, Mutant, Source, digest_of, hand_mutants

SETTINGS = Path(__file__).with_name("mutants.toml")
#: Mutants of at least so many of a module are tried, whatever its size.
AT_LEAST = 8


def sample(
    settings: dict[str, Any], count: int, seed: str, only: Sequence[str]
) -> dict[str, tuple[int, list[Mutant]]]:
    """Return the sampled mutants of each module, and how many it has: {path: (all, mutants)}."""
    store = OUT / "sample.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    paths = module_paths(settings)
    keys = {path: digest_of(seed, (ROOT / path).read_text()) for path in paths}
    sources = {p: Source(p, seed) for p in paths if known.get(p, {}).get("key") != keys[p]}
    for path, source in sources.items():
        known[path] = {"key": keys[path], "total": len(source), "drawn": []}
    whole = sum(known[path]["total"] for path in paths)
    found = {}
    for path in paths:
        total, drawn = known[path]["total"], known[path]["drawn"]
        share = min(total, max(AT_LEAST, round(count * total / whole)))
        if len(drawn) < share:
            source = sources.get(path) or Source(path, seed)
            drawn = known[path]["drawn"] = [asdict(m) for m in source.mutants(share)]
        found[path] = total, [Mutant(**m | {"lines": tuple(m["lines"])}) for m in drawn[:share]]
    store.write_text(json.dumps(known))
    return {p: of for p, of in found.items() if not only or any(word in p for word in only)}


def module_paths(settings: dict[str, Any]) -> list[str]:
    """Return the files of the modules that are listed."""
    found = [str(f.relative_to(ROOT)) for g in settings["modules"] for f in sorted(ROOT.glob(g))]
    return [f for f in found if not f.endswith("__init__.py")]


def try_all(
    mutants: Sequence[Mutant],
    tests: Near | Reach,
    results: Results,
    workers: int,
    until_s: float,
    *,
    untried: bool = False,
) -> dict[str, dict[str, Any]]:
    """Try the mutants of which nothing is known; return what became of each, by id.

    With `untried`, those that have survived are not tried again with tests that have changed since.
    """
    chosen = {m.id: (tests.tests(m), tests.files(m)) for m in mutants}
    known = {m.id: results.get(m, *chosen[m.id]) for m in mutants}
    if untried:
        known |= {m.id: results.last(m) for m in mutants if known[m.id] is None}
    due = [m for m in mutants if known[m.id] is None]
    print(f"{len(mutants)} mutants, {len(mutants) - len(due)} known", flush=True)
    for mutant in due:
        if not chosen[mutant.id][1]:
            answer = {"id": mutant.id, "outcome": "no tests", "test": "", "how": "", "seconds": 0}
            results.put(mutant, {}, (), answer)
            known[mutant.id] = answer
    # In an order that no module leads, so that a run that is cut short is a sample as well.
    due = sorted((m for m in due if chosen[m.id][1]), key=lambda m: digest_of(m.id))
    by_id = {m.id: m for m in due}
    shares = [due[n::workers] for n in range(workers)]
    runs = []
    for number, share in enumerate(each for each in shares if each):
        files = sorted({file for m in share for file in chosen[m.id][1]})
        task = [
            {"id": m.id, "path": m.path, "source": m.source}
            | {"tests": list(chosen[m.id][0]), "files": chosen[m.id][1]}
            | {"killer": results.killer(m)}
            for m in share
        ]
        runs.append(Run(number, {"mutants": task}, files))
    try:
        for done, (_, answer) in enumerate(answers(runs, until_s), 1):
            mutant = by_id[answer["id"]]
            results.put(mutant, *chosen[mutant.id], answer)
            known[mutant.id] = answer
            print(f"{done}/{len(due)} {answer['outcome']:8} {answer['seconds']:5.1f} s "
                  f"{mutant.id} {answer['test'] or answer['how']}", flush=True)  # fmt: skip
    except TimeoutError as error:
        print(error, flush=True)
    return {name: value for name, value in known.items() if value is not None}


def main() -> None:
    """Try what is not known yet; print the score, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="mutants of the sample, about")
    parser.add_argument("--seed", default="1", help="of the sample")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD",
        help="modules whose path contains this; `hand`: those chosen by hand",
    )  # fmt: skip
    parser.add_argument(
        "--near", action="store_true", help="run only the tests of the module's own test files"
    )
    parser.add_argument(
        "--untried", action="store_true", help="leave those that survived with other tests before"
    )
    parser.add_argument("--again", action="store_true", help="only those that have survived before")
    parser.add_argument(
        "--report", action="store_true", help="run nothing: tell what is known of the sample"
    )
    parser.add_argument(
        "--hand", type=Path, default=HAND, metavar="FILE", help="the list of those chosen by hand"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"),
        help="stop after so many minutes; the next run tries the mutants that are left",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, help="processes that run tests")
    parser.add_argument("--page", type=Path, help="write the score and the survivors there")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    settings = tomllib.loads(SETTINGS.read_text())
    hand = [] if args.only and "hand" not in args.only else hand_mutants(args.hand)
    words = [word for word in args.only if word != "hand"]
    sampled = {} if args.only == ["hand"] else sample(settings, args.count, args.seed, words)
    paths = sorted({*module_paths(settings), *(m.path for m in hand_mutants(args.hand))})
    mutants = [*hand, *(m for _, found in sampled.values() for m in found)]
    results = Results()
    if args.again:
        last = {m.id: results.last(m) for m in mutants}
        mutants = [m for m in mutants if (found := last[m.id]) and found["outcome"] != "killed"]
    near = {m.id: near_files(settings, m.path) for m in mutants}
    until_s = time.monotonic() + 60 * args.minutes
    if args.report:
        outcomes = {m.id: last for m in mutants if (last := results.last(m))}
    else:
        outcomes = try_all(
            mutants, Near(near), results, args.workers, until_s, untried=args.untried
        )
    if not args.near and not args.report:
        left = [m for m in mutants if outcome_of(outcomes, m) != "killed"]
        try:
            reached = reach(settings, paths, args.workers, until_s) if left else None
        except TimeoutError as error:
            sys.exit(str(error))
        if reached:
            outcomes |= try_all(left, reached, results, args.workers, until_s)
    count = Counter(outcome_of(outcomes, m) for m in mutants)
    for mutant in mutants:
        outcome = outcome_of(outcomes, mutant)
        if outcome not in ("killed", "untried"):
            print(f"{outcome}: {mutant.id}\n  - {mutant.old}\n  + {mutant.new}")
    print(f"{count.total()} mutants: {dict(count)}")
    if args.page:
        near_only = " --near" if args.near else ""
        heading = (
            f"`python -m proof.mutation --count {args.count}{near_only}` at commit"
            f" `{commit()}`, seed `{args.seed}`: {len(mutants) - len(hand)} mutants of the sample,"
            f" {len(hand)} faults chosen by hand."
        )
        args.page.write_text(page(sampled, hand, outcomes, settings.get("equivalent", {}), heading))


if __name__ == "__main__":
    main()
