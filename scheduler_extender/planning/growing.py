"""Elastic gangs grow into GPUs that are idle after all others had their turn, and stop no gang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scheduler_extender.planning.questions import Answer, Question

Decide = Callable[[Question], Answer]


def grow_last(question: Question, decide: Decide) -> Answer:
    """Decide on a question without the pods by which elastic gangs grow, then on these as well.

    They are decided on only in a round in which no other start gets a place and no gang is
    leaving: the rounds that follow such a one look at them. No gang leaves, or gets smaller, for
    them.
    """
    if not question.growing:
        return decide(question)
    growing = question.growing
    starts = {key: each for key, each in question.starts.items() if key not in growing}
    answer = decide(replace(question, starts=starts))
    if question.going or answer.placed or answer.gives_way or answer.shrinks:
        return answer
    return decide(replace(question, victims={}, elastic={}))
