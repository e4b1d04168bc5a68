"""filter, prioritize and preempt: requests about the state, answered without side effects.

kube-scheduler asks them about the nodes that its plugins let through, possibly about one nominated
node alone, and a Binding need not follow. So these verbs reserve nothing: bind does (binding.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from scheduler_extender.cluster.ledger import Hold
from scheduler_extender.cluster.pods import PodInfo, pod_info
from scheduler_extender.cluster.state import ClusterState
from scheduler_extender.verbs.wire import (
    FILTER,
    MAX_SCORE,
    Buffer,
    ExtenderArgs,
    ExtenderPreemptionArgs,
    HostPriority,
    MetaVictims,
    Pod,
    asked_nodes,
    asked_victims,
    filter_answer,
    prioritize_answer,
)
from tandem.policy.cluster import GpuArrays
from tandem.policy.job import Job
from tandem.policy.pipeline import Evaluation, Pipeline, evaluate, refusals
from tandem.policy.ports import Constraint
from tandem.policy.units import Bools, Floats, Ints
from tandem.reasons.causes import Cause
from tandem.reasons.counting import counted
from tandem.reasons.words import clause, in_common

_NAMED = 4  # GPUs named per sentence; the rest are counted
NO_AGENT = "no Tandem node agent reports here"
BY_CLAIMS = "hands its GPUs over by claims, and the pod has none"
#: Below the planned node's score: a plan is outvoted by the plugins' refusal alone.
BEST_UNPLANNED = 8
#: Nodes whose refusal is explained GPU by GPU; an event has room for a few at most.
_EXPLAINED = 4
#: How the requests of kube-scheduler end.
_NAMES, _NO_NAMES = b'"NodeNames":[', b'"NodeNames":null}'


class MalformedPodError(ValueError):
    """A pod that no API server would have sent."""


def read_pod(pod: Pod | None) -> PodInfo:
    """Return the pod of a request.

    Raises:
        MalformedPodError: it has no uid, or its requests are no quantities.
    """
    if not pod or not pod.get("metadata", {}).get("uid"):
        raise MalformedPodError("Pod.metadata.uid: missing")
    try:
        return pod_info(pod)
    except (ValueError, KeyError) as error:
        raise MalformedPodError(f"Pod: {error}") from error


@dataclass(frozen=True, slots=True)
class LastFilter:
    """What filter answered last, for the prioritize that follows it about the same pod and nodes.

    `names` are the nodes that filter let through, at `slots` of the table as laid out in `layout`;
    `all_names` are those that it was asked about, at `all_slots`: the next pod is often asked about
    the same.
    `ending` is how a request about these nodes ends. `evaluation` holds while `version` does.
    """

    asked: Pod
    pod: PodInfo
    layout: int
    names: list[str]
    slots: Ints
    all_names: list[str]
    all_slots: Ints
    ending: bytes
    version: object
    evaluation: Evaluation


class Verbs:
    """The questions of kube-scheduler about one state and one pipeline. They only read the state.

    `refusal` returns why a pod may not start now at all, or ''. Prioritize asks about the pod and
    the nodes that filter let through: it takes from `LastFilter` what filter has computed already.
    """

    def __init__(
        self,
        state: ClusterState,
        pipeline: Pipeline,
        refusal: Callable[[PodInfo], str] = lambda _: "",
    ) -> None:
        self._state = state
        self._pipeline = pipeline
        self._refusal = refusal
        self._last: LastFilter | None = None

    def read(self, body: bytes) -> ExtenderArgs:
        """Return what filter or prioritize is asked; raises pydantic's ValidationError.

        kube-scheduler asks prioritize about the nodes that filter answered, in their order and at
        the end of the request: they are compared as bytes, since to decode them takes half the
        time.
        """
        last = self._last
        if last is not None and body.endswith(last.ending):
            with contextlib.suppress(ValidationError):  # the whole body is validated below
                args = FILTER.validate_json(body[: -len(last.ending)] + _NO_NAMES)
                args["NodeNames"] = last.names
                return args
        return FILTER.validate_json(body)

    def filter(self, args: ExtenderArgs) -> bytes:
        """Return the nodes with enough GPUs that may take the pod, and why the others may not."""
        asked, names = args.get("Pod"), asked_nodes(args)
        pod = read_pod(asked)
        if pod.gpus == 0:
            return filter_answer(json.dumps(names).encode()[1:-1])
        why = self._refusal(pod)
        if why:
            # Preempting others would not help. The controller touches the pod when it has a plan.
            return filter_answer(b"", (), json.dumps(dict.fromkeys(names, why)).encode()[1:-1])
        if len(names) == 1:
            return self._filter_one(pod, names[0])
        table = self._state.table
        slots = self._slots(names)
        known = slots >= 0
        here = slots[known]
        job = self._state.worker(pod)
        evaluation = self._evaluate(job, pod.uid)
        fits = (_by_node(evaluation.allowed, False, table.across).sum(axis=0) >= pod.gpus)[here]
        lacking, lacks = self._lacking(pod, here)
        fits &= lacking == 0
        inside, outside = self._in_domain(pod, names)
        inside = inside[known]
        fits &= inside
        fitting = here[fits]
        all_fit = len(fitting) == len(names)
        fitting_names = table.encoder.names(fitting)
        assert asked is not None  # read_pod refuses a request without a pod
        self._last = LastFilter(
            asked=asked,
            pod=pod,
            layout=table.layout,
            names=names if all_fit else [table.node_names[slot] for slot in fitting.tolist()],
            slots=fitting,
            all_names=names,
            all_slots=slots,
            ending=b"".join((_NAMES, fitting_names, b"]}")),
            version=self._version(job, pod.uid),
            evaluation=evaluation,
        )
        if all_fit:
            return filter_answer(fitting_names)
        enough = table.gpus_of_slot[here] >= pod.gpus
        short = enough & inside & (lacking > 0)
        unresolvable = {
            **{table.node_names[slot]: f"has fewer than {pod.gpus} GPUs in all"
               for slot in here[~fits & ~enough].tolist()},
            **{table.node_names[slot]: outside for slot in here[enough & ~inside].tolist()},
            **{names[index]: NO_AGENT for index in np.flatnonzero(~known).tolist()},
        }  # fmt: skip
        return filter_answer(
            fitting_names,
            (
                *self._refusals(pod, here[~fits & enough & inside & (lacking == 0)], evaluation),
                table.encoder.members(here[short], lacks, lacking[short]),
            ),
            json.dumps(unresolvable).encode()[1:-1],
        )

    def prioritize(self, args: ExtenderArgs) -> bytes:
        """Return 10 for the planned node, for others the policy's score between 0 and 8."""
        asked, names, last = args.get("Pod"), asked_nodes(args), self._last
        pod = last.pod if last is not None and asked == last.asked else read_pod(asked)
        if len(names) == 1:
            alone: HostPriority = {"Host": names[0], "Score": self._score_of_one(pod, names[0])}
            return json.dumps([alone]).encode()
        slots = self._slots(names)
        known = slots >= 0
        here = slots[known]
        scores = np.zeros(len(here), dtype=np.int64)
        table = self._state.table
        if pod.gpus > 0 and len(here):
            job = self._state.worker(pod)
            if last is not None and last.version == self._version(job, pod.uid):
                allowed = last.evaluation.allowed
            else:
                allowed = self._evaluate(job, pod.uid).allowed
            score = evaluate(job, self._state.gpus, (), self._pipeline.scorers).score
            score[~allowed] = -np.inf
            scores = _whole_scores(_best_of_nodes(score, table.across, pod.gpus)[here])
            plan = self._state.ledger.claim(pod.uid, Hold.PLANNED)
            if plan is not None:
                scores[here == table.slot_of.get(plan.node, -2)] = MAX_SCORE
        others: list[HostPriority] = [
            {"Host": names[index], "Score": 0} for index in np.flatnonzero(~known).tolist()
        ]
        return prioritize_answer(
            table.encoder.scored(here, scores), json.dumps(others).encode()[1:-1]
        )

    def preempt(self, args: ExtenderPreemptionArgs) -> dict[str, MetaVictims]:
        """Return those nodes (with the victims given) on which the pod would then have its GPUs."""
        pod, proposed = read_pod(args.get("Pod")), asked_victims(args)
        if pod.gpus == 0:
            return proposed
        job = self._state.worker(pod)
        kept = {}
        for node, victims in proposed.items():
            rows = self._state.table.rows(node)
            going = frozenset(victim["UID"] for victim in victims.get("Pods") or ())
            left = self._state.ledger.without(rows, going | {pod.uid})
            if int(self._pipeline.evaluate(job, left).allowed.sum()) >= pod.gpus:
                kept[node] = victims
        return kept

    def _filter_one(self, pod: PodInfo, node: str) -> bytes:
        """Answer about one node from its rows alone.

        kube-scheduler tries the nominated node of a pod alone, so that the time of this answer must
        not depend on the number of nodes.
        """
        has = len(self._state.table.rows(node))
        unresolvable = why = ""
        if node not in self._state.table.slot_of:
            unresolvable = NO_AGENT
        elif has < pod.gpus:
            unresolvable = f"has fewer than {pod.gpus} GPUs in all"
        elif not (found := self._in_domain(pod, [node]))[0][0]:
            unresolvable = found[1]
        elif pod.amounts:
            at, causes = self._state.nodes_for(pod, (node,)).lacking_amounts(0)
            why = clause(causes[at[0] - 1]) if at[0] else ""
        if not (unresolvable or why):
            job, gpus = self._state.worker(pod), self._gpus_without(pod, node)
            constraints = self._pipeline.constraints
            evaluation = evaluate(job, gpus, constraints)
            if int(evaluation.allowed.sum()) >= pod.gpus:
                return filter_answer(json.dumps(node).encode())
            why = node_reason(job, gpus, constraints, evaluation.refused_by)
        member = json.dumps({node: unresolvable or why}).encode()[1:-1]
        return filter_answer(b"", (), member) if unresolvable else filter_answer(b"", (member,))

    def _score_of_one(self, pod: PodInfo, node: str) -> int:
        """Return the score of a node that is asked about alone: it is the best of all."""
        if pod.gpus == 0:
            return 0
        plan = self._state.ledger.claim(pod.uid, Hold.PLANNED)
        if plan is not None and plan.node == node and node in self._state.table.slot_of:
            return MAX_SCORE
        job, gpus = self._state.worker(pod), self._gpus_without(pod, node)
        allowed = evaluate(job, gpus, self._pipeline.constraints).allowed
        return BEST_UNPLANNED if int(allowed.sum()) >= pod.gpus else 0

    def _gpus_without(self, pod: PodInfo, node: str) -> GpuArrays:
        """Return the GPUs of a node, the pod's own claims left out."""
        rows, held = self._state.table.rows(node), self._state.ledger.held(pod.uid)
        if held is not None and held[1].node == node:
            return self._state.ledger.without(rows, frozenset((pod.uid,)))
        return self._state.gpus.take(rows)

    def _slots(self, names: list[str]) -> Ints:
        """Return (names,): the slot of each node, -1 where no agent reports.

        To compare the names with those of the last filter is cheaper than to look all up again.
        """
        table, last = self._state.table, self._last
        if last is not None and last.layout == table.layout:
            if names == last.names:
                return last.slots
            if names == last.all_names:
                return last.all_slots
        return np.fromiter(map(table.slot_of.get, names, repeat(-1)), np.int64, len(names))

    def _evaluate(self, job: Job, uid: str) -> Evaluation:
        """Return which GPUs may take a worker of the pod, its own claims left out."""
        state = self._state
        evaluation = evaluate(job, state.gpus, self._pipeline.constraints)
        held = state.ledger.held(uid)
        if held is not None:
            own = state.rows_of(held[1].node, held[1].gpus)
            alone = evaluate(
                job, state.ledger.without(own, frozenset((uid,))), self._pipeline.constraints
            )
            evaluation.allowed[own] = alone.allowed
            evaluation.refused_by[own] = alone.refused_by
        return evaluation

    def _lacking(self, pod: PodInfo, slots: Ints) -> tuple[Ints, list[str]]:
        """Return (slots,) which of the reasons keeps a pod off each node, 0 for none of them.

        Of the resources besides GPUs, CPU and memory, since plans that wait for their Binding count
        here and not in kube-scheduler, which judges the rest.
        """
        if not pod.amounts:
            return np.zeros(len(slots), dtype=np.int64), []
        table, nodes = self._state.table, self._state.nodes_for(pod)
        at, causes = nodes.lacking_amounts(0)
        by_slot = np.zeros(len(table.node_names), dtype=np.int64)
        by_slot[np.fromiter(map(table.slot_of.__getitem__, nodes.names), np.int64, len(at))] = at
        return by_slot[slots], ["", *map(clause, causes)]

    def _in_domain(self, pod: PodInfo, names: Sequence[str]) -> tuple[Bools, str]:
        """Return (names,), True for nodes in the domain that the pod's gang requires.

        And what is said of the others. Labels may have changed since the gang was planned. Nodes
        that hand GPUs over by claims are in no domain of a pod without one.
        """
        inside, outside = np.ones(len(names), dtype=np.bool_), ""
        required = self._state.required_domain(pod)
        if required is not None:
            level, node = required
            inside = self._state.nodes.in_domain_of(node, level, names)
            outside = f"is in another {level} than the other pods of the job"
        by_claims = self._state.nodes.by_claims
        if by_claims and not pod.gpu_claim and not by_claims.isdisjoint(names):
            inside &= np.array([name not in by_claims for name in names], dtype=np.bool_)
            outside = f"{outside}, or {BY_CLAIMS}" if outside else BY_CLAIMS
        return inside, outside

    def _version(self, job: Job, uid: str) -> object:
        """Return what `_evaluate` depends on: while it is equal, so is the evaluation."""
        state = self._state
        return uid, job, state.table.generation, state.slowdowns.pairs.version, len(state.gpus)

    def _refusals(self, pod: PodInfo, slots: Ints, evaluation: Evaluation) -> Iterable[Buffer]:
        """Return why nodes were refused, as members: the first few by GPU, the rest in common."""
        if len(slots) == 0:
            return ()
        table, constraints = self._state.table, self._pipeline.constraints
        job = self._state.worker(pod)
        in_full = []
        for slot in slots[:_EXPLAINED].tolist():
            node = table.node_names[slot]
            refused_by = evaluation.refused_by[table.rows(node)]
            in_full.append(node_reason(job, self._gpus_without(pod, node), constraints, refused_by))
        first = table.encoder.members(
            slots[:_EXPLAINED], in_full, np.arange(len(in_full), dtype=np.int64)
        )
        rest = slots[_EXPLAINED:]
        groups = refusals(job, self._state.gpus, constraints, evaluation.refused_by)
        refused_for = _by_node(groups.group, -1, table.across[:, rest])
        mostly = _most_frequent(refused_for, len(groups.constraints))
        in_common = [""] * len(groups.constraints)
        for group in np.flatnonzero(np.bincount(mostly)).tolist():
            one = np.flatnonzero(groups.group == group)[:1]
            constraint = constraints[groups.constraints[group]]
            in_common[group] = reason_of_many(
                constraint.cause(job, self._state.gpus.take(one), 0), pod.gpus
            )
        return first, table.encoder.members(rest, in_common, mostly)


_Value = TypeVar("_Value", np.bool_, np.int64, np.float64)


def _by_node(values: NDArray[_Value], filler: float, across: Ints) -> NDArray[_Value]:
    """Return (widest node, nodes): the values of each node's rows, `filler` where it has fewer."""
    return np.append(values, np.array([filler], dtype=values.dtype)).take(across)


def _most_frequent(values: Ints, kinds: int) -> Ints:
    """Return (columns,): the value in [0, kinds) that each column has most often; ties: least."""
    columns = values.shape[1]
    if columns and values[0, 0] >= 0 and (values == values[0, 0]).all():  # in a full cluster
        return np.full(columns, values[0, 0])
    cells = values + 1 + np.arange(columns) * (kinds + 1)  # the first of each is for -1
    counts = np.bincount(cells.ravel(), minlength=columns * (kinds + 1))
    most: Ints = counts.reshape(columns, kinds + 1)[:, 1:].argmax(axis=1)
    return most


def _best_of_nodes(score: Floats, across: Ints, wanted: int) -> Floats:
    """Return (nodes,): the mean score of the `wanted` best GPUs; -inf where fewer are allowed."""
    by_node = _by_node(score, -np.inf, across)
    if wanted > len(by_node):
        return np.full(by_node.shape[1], -np.inf)
    if wanted == 1:
        best: Floats = by_node.max(axis=0)
        return best
    mean: Floats = -np.partition(-by_node, wanted - 1, axis=0)[:wanted].mean(axis=0)
    return mean


def _whole_scores(best: Floats) -> Ints:
    """Return (nodes,) whole numbers: 8 for the best, 0 for the worst and for the impossible."""
    scores = np.zeros(len(best), dtype=np.int64)
    possible = np.isfinite(best)
    if possible.any():
        low, high = best[possible].min(), best[possible].max()
        share = (best[possible] - low) / (high - low) if high > low else 1.0
        scores[possible] = np.rint(BEST_UNPLANNED * share)
    return scores


def node_reason(
    job: Job,
    gpus: GpuArrays,
    constraints: Sequence[Constraint],
    refused_by: Ints,
    ids: Sequence[str] | None = None,
) -> str:
    """Say why one node's GPUs (`gpus`) cannot take a pod of `job`; by `ids`, else how many.

    `refused_by` (gpus,) is what `evaluate` says of them. GPUs that are refused for the same reason
    with the same figures share a sentence. An event of the pod, which its tenant reads, has no ids.
    """
    refused: dict[Cause, list[int]] = {}
    for row, index in enumerate(refused_by.tolist()):
        if index >= 0:
            refused.setdefault(constraints[index].cause(job, gpus, row), []).append(row)
    allowed = int(np.count_nonzero(refused_by < 0))
    parts = [
        f"{counted(len(rows), 'GPU') if ids is None else _listed([ids[row] for row in rows])}:"
        f" {clause(cause)}"
        for cause, rows in refused.items()
    ]
    if allowed:
        parts.insert(0, f"{allowed} of the {job.gpus_per_pod} GPUs wanted")
    return "; ".join(parts)


def reason_of_many(cause: Cause, wanted: int) -> str:
    """Say why a node was refused where many were: the same words for all, which are counted."""
    return f"fewer than {counted(wanted, 'GPU')} can take it, mostly because {in_common(cause)}"


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
