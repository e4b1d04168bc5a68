"""One scheduling cycle within the quotas: which jobs may be tried, which borrowers are preempted.

Wraps the plan of a round, whatever the profile's dispatch. Jobs over a cap are kept off the board;
jobs within a share are tried first; and where such a job finds no place, those that have only
borrowed give way, if that makes it fit: a second plan, as if they were going already, shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from scheduler_extender.cluster.records import Key
from scheduler_extender.planning.explaining import named
from scheduler_extender.planning.questions import Answer, GivesWay, Question, Start
from scheduler_extender.quotas.grants import Turn
from tandem.reasons.causes import Cause, Reason

_AGAIN = 3  # times that a round is planned anew because somebody under a cap has found no place
_CLAIMS = 4  # that are looked into in one round
_VICTIMS = 16  # for one claim

Plan = Callable[[Question], Answer]


@dataclass(slots=True)
class _Claim:
    """A start that has a right to GPUs which others should give up."""

    start: Start
    victims: list[Key] = field(default_factory=list)


def plan_within(question: Question, turn: Turn, plan: Plan) -> Answer:
    """Return the answer to a question, with the namespaces' quotas kept."""
    if not turn.quotas:
        return plan(question)
    return _QuotaRound(question, turn, plan).answer()


class _QuotaRound:
    def __init__(self, question: Question, turn: Turn, plan: Plan) -> None:
        self._turn = turn
        self._plan = plan
        self._order = turn.ranked(question.rank())
        first = frozenset(key for key in self._order if turn.lends_to(key)) & question.starts.keys()
        self._q = replace(question, rank=lambda: self._order, front=question.front | first)

    def answer(self) -> Answer:
        passed_over: set[Key] = set()
        for again in range(_AGAIN):
            admitted, withheld = self._admit(passed_over)
            answer = self._plan(replace(self._q, starts=admitted))
            capped = {start.gpujob[0] for start, _ in withheld}
            stuck = {
                waiting.start.gpujob
                for waiting in answer.waiting
                if waiting.start.gpujob[0] in capped and not waiting.causes
            } - passed_over
            if not stuck or again == _AGAIN - 1:
                break
            passed_over |= stuck  # what they may have is not kept from those behind them
        self._keep(answer)
        for start, why in withheld:
            answer.waiting.add(start, why)
        self._take_back(answer)
        return answer

    def _admit(
        self, passed_over: set[Key]
    ) -> tuple[dict[Key, Sequence[Start]], list[tuple[Start, Cause]]]:
        """Return the gangs that may be tried, in order, and starts over a cap with causes."""
        account = self._turn.copy()
        admitted: dict[Key, Sequence[Start]] = {}
        withheld: list[tuple[Start, Cause]] = []
        for key in self._order:
            fitting = []
            for start in self._q.starts.get(key, ()):
                why = account.refusal(key, start.gpus)
                if why:
                    withheld.append((start, why))
                    continue
                fitting.append(start)
                if key not in passed_over:
                    account.take(key, start.gpus)
            if fitting:
                admitted[key] = fitting
        return admitted, withheld

    def _keep(self, answer: Answer) -> None:
        """Withhold starts whose place another job was granted."""
        account, kept = self._turn.copy(), []
        for verdict in answer.placed:
            key, gpus = verdict.start.gpujob, verdict.start.gpus
            why = account.refusal(key, gpus)
            if why:
                answer.waiting.add(verdict.start, why)
                continue
            account.take(key, gpus)
            kept.append(verdict)
        answer.placed[:] = kept

    # --- taking back --------------------------------------------------------------------------

    def _take_back(self, answer: Answer) -> None:
        asked = {gives.victim for gives in answer.gives_way}
        free = [key for key in reversed(self._order) if key in self._q.victims and key not in asked]
        if not free:
            return
        claims = self._claims(answer, free)
        if not claims:
            return
        victims = {victim for claim in claims for victim in claim.victims}
        starts = {**self._q.starts}
        going = self._q.going | self._pods_of(victims)
        would = self._plan(replace(self._q, starts=starts, going=going, victims={}))
        fits = {verdict.start.gpujob for verdict in would.placed}
        fits |= {waiting.start.gpujob for waiting in would.waiting if waiting.causes}
        for claim in claims:
            key = claim.start.gpujob
            if key not in fits:
                continue
            answer.gives_way += [GivesWay(victim, key) for victim in claim.victims]
            room = Cause(Reason.MAKING_ROOM, job=named(claim.victims, key))
            for place, waiting in enumerate(answer.waiting):
                if waiting.start is claim.start:
                    answer.waiting.say(place, *waiting.causes, room, coming=True)

    def _claims(self, answer: Answer, free: list[Key]) -> list[_Claim]:
        """Return claims of those that wait, each with victims of its own, the least deserving."""
        turn, found = self._turn, []
        coming = turn.coming()
        for waiting in answer.waiting:
            key, wants = waiting.start.gpujob, waiting.start.gpus
            over = turn.refusal(key, wants)
            if over:
                need, pool = turn.excess(key, wants), self._lesser_at_home(key, free)
            elif waiting.causes or turn.borrows(key):
                continue
            else:
                need, coming = max(0, wants - coming), max(0, coming - wants)
                pool = [victim for victim in free if turn.reclaims(key, victim)]
            if need == 0:
                continue  # it is on its way already
            claim = _Claim(waiting.start)
            for victim in pool[:_VICTIMS]:
                if need <= 0:
                    break
                claim.victims.append(victim)
                need -= turn.has(victim)
            if need <= 0:
                found.append(claim)
                free = [victim for victim in free if victim not in claim.victims]
            if len(found) == _CLAIMS:
                break
        return found

    def _lesser_at_home(self, key: Key, free: Iterable[Key]) -> list[Key]:
        """Return later gangs of its namespace that had more service by at least their charge."""
        place = self._order.index(key)
        behind = set(self._order[place + 1 :])
        service = float(self._q.arrays.service_at_since[self._q.row_of[key]])
        return [
            victim
            for victim in free
            if victim[0] == key[0]
            and victim in behind
            and self._q.victims[victim].service_gpu_s - service
            >= self._q.victims[victim].charge_gpu_s
        ]

    def _pods_of(self, gangs: set[Key]) -> frozenset[str]:
        names = {"/".join(key) for key in gangs}
        return frozenset(uid for uid, claim in self._q.claims.items() if claim.job.id in names)
