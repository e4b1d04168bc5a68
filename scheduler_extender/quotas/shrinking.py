"""Elastic gangs get smaller in place of gangs that would be stopped, where that makes room too.

Looks at a round that has been decided: for each start for which gangs are to be stopped, a second
plan, as if pods of elastic gangs were going already, says whether it has a place then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.explaining import named
from scheduler_extender.planning.questions import Answer, Question, Shrinks
from scheduler_extender.quotas.grants import Turn
from scheduler_extender.quotas.round import plan_within
from tandem.policy.elastic import LOOKS, behind, last_first, smaller_instead
from tandem.reasons.causes import Cause, Reason

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
    gpus = question.snapshot.gpus
    idle = int(np.count_nonzero((gpus.jobs == 0) & gpus.healthy))
    for to in list(dict.fromkeys(g.to for g in answer.gives_way if g.to != g.victim))[:LOOKS]:
        at = next((n for n, each in enumerate(answer.waiting) if each.start.gpujob == to), None)
        if at is None:
            continue
        chosen = smaller_instead(
            [gives.victim for gives in answer.gives_way if gives.to == to],
            _lesser(to, rank, turn, left),
            left,
            wants=answer.waiting[at].start.gpus,
            idle=idle,
            fits=partial(_fits, question, turn, to, plan=plan),
        )
        if not chosen:
            continue
        answer.gives_way[:] = [gives for gives in answer.gives_way if gives.to != to]
        answer.shrinks += [replace(each, to=to) for each in chosen]
        keys = [each.gang for each in chosen]
        for key in keys:
            del left[key]
        room = Cause(Reason.MAKING_ROOM, job=named(keys, to))
        answer.waiting.say(at, room, coming=True)


def _lesser(to: Key, rank: Sequence[Key], turn: Turn, keys: Collection[Key]) -> list[Key]:
    """Return who has to make room for a start: the last in order comes first."""
    if turn.quotas:
        return last_first(rank, [key for key in keys if turn.reclaims(to, key)])
    return behind(to, rank, keys)


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
