"""Elastic gangs get smaller in place of gangs that would be stopped, where that makes room too.

Looks at a round that has been decided: for each start for which gangs are to be stopped, a second
plan, as if pods of elastic gangs were going already, says whether it has a place then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.explaining import named
from scheduler_extender.planning.questions import Answer, Question, Shrinks, Waiting
from scheduler_extender.quotas.grants import Turn
from scheduler_extender.quotas.round import plan_within
from tandem.reasons.causes import Cause, Reason

#: Starts that are looked into in one round. Each costs up to three plans.
_LOOKS = 4

Plan = Callable[[Question], Answer]


def shrink_first(question: Question, turn: Turn, answer: Answer, plan: Plan) -> None:
    """Replace gangs that an answer stops by elastic ones that get smaller, where that is enough.

    A gang that gets smaller is one of those that would be stopped, or one that the quotas or the
    order put behind the start.
    """
    if not (question.elastic and answer.gives_way):
        return
    left = dict(question.elastic)
    rank = question.rank()
    for to in list(dict.fromkeys(g.to for g in answer.gives_way if g.to != g.victim))[:_LOOKS]:
        at = next((n for n, each in enumerate(answer.waiting) if each.start.gpujob == to), None)
        if at is None:
            continue
        stopped = [gives.victim for gives in answer.gives_way if gives.to == to]
        behind = _behind(to, rank, turn, left)
        order = [key for key in dict.fromkeys((*stopped, *behind)) if key in left]
        chosen = _enough(question, turn, answer.waiting[at], [left[key] for key in order], plan)
        if not chosen:
            continue
        answer.gives_way[:] = [gives for gives in answer.gives_way if gives.to != to]
        answer.shrinks += [replace(each, to=to) for each in chosen]
        keys = [each.gang for each in chosen]
        for key in keys:
            del left[key]
        room = Cause(Reason.MAKING_ROOM, job=named(keys, to))
        answer.waiting.say(at, room, coming=True)


def _behind(to: Key, rank: Sequence[Key], turn: Turn, keys: Iterable[Key]) -> list[Key]:
    """Return who has to make room for a start: the last in order comes first."""
    place = {key: number for number, key in enumerate(rank)}
    if turn.quotas:
        found = [key for key in keys if turn.reclaims(to, key)]
    else:
        found = [key for key in keys if place.get(key, -1) > place.get(to, len(rank))]
    return sorted(found, key=lambda key: -place.get(key, -1))


def _enough(
    question: Question,
    turn: Turn,
    waiting: Waiting,
    elastic: Sequence[Sequence[Shrinks]],
    plan: Plan,
) -> list[Shrinks]:
    """Return the least that has to go for a start to have a place, nothing where none is enough."""
    gpus = question.snapshot.gpus
    wants = waiting.start.gpus
    idle = int(np.count_nonzero((gpus.jobs == 0) & gpus.healthy))
    tried: list[list[Shrinks]] = []
    for chosen in (_giving(elastic, each) for each in (max(1, wants - idle), wants, None)):
        if not chosen or chosen in tried:
            continue
        tried.append(chosen)
        if _fits(question, turn, waiting.start.gpujob, chosen, plan):
            return chosen
    return []


def _giving(elastic: Sequence[Sequence[Shrinks]], gpus: int | None) -> list[Shrinks]:
    """Return who gives up so many GPUs together, or all that they may: gang by gang.

    Nothing where all that they may give up is less.
    """
    chosen, need = list[Shrinks](), gpus
    for steps in elastic:
        if need is not None and need <= 0:
            break
        enough = (each for each in steps if need is not None and each.gpus >= need)
        step = next(enough, steps[-1])
        chosen.append(step)
        need = None if need is None else need - step.gpus
    return [] if need is not None and need > 0 else chosen


def _fits(question: Question, turn: Turn, to: Key, chosen: Sequence[Shrinks], plan: Plan) -> bool:
    """Say whether a start has a place once pods of elastic gangs have gone."""
    gone = frozenset(uid for each in chosen for uid in each.uids)
    given_up = {each.gang: each.gpus for each in chosen}
    would = plan_within(
        replace(question, going=question.going | gone, victims={}, elastic={}),
        turn.without(given_up),
        plan,
    )
    return to in set(_coming(would))


def _coming(answer: Answer) -> Iterator[Key]:
    yield from (verdict.start.gpujob for verdict in answer.placed)
    yield from (start.gpujob for start in answer.waiting.coming())
