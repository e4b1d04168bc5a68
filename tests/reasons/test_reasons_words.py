"""Each reason has a text for people that says what its parameters say; the page lists them all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from reason_texts import unsaid

from scheduler_extender.cluster.jobs import rfc3339
from scheduler_extender.queue.steps import lifecycle
from tandem.contracts.resources import GPUJobStatus
from tandem.contracts.values import LONGEST_TEXT
from tandem.policy.catalog import AnyConstraint, AnyDispatch, AnyOrder, AnyScorer
from tandem.reasons.causes import MOST_CAUSES, Cause, Reason, first_of, understood
from tandem.reasons.page import EXAMPLES, PAGE, page
from tandem.reasons.words import KINDS, WORDS, briefly, in_full, in_general, kind_of, sentence

NOW = 1_800_000_000.0
#: What only readers of the code understand.
TERMS = re.compile(r"\(s\)|dispatch|\bshares?\b taken|attained|\bGPU-[0-9a-f]{8}|[a-z]+_[a-z]+")


def kinds(union: object) -> set[str]:
    """Return the names of policies in configuration files."""
    classes = union.__args__[0].__args__  # type: ignore[attr-defined]
    return {each.model_fields["kind"].default for each in classes}


@pytest.mark.parametrize("reason", list(Reason))
def test_each_text_has_its_parameters(reason: Reason) -> None:
    cause = EXAMPLES[reason]
    text = sentence(cause)
    assert WORDS[reason].kind in KINDS
    assert not unsaid(cause), text
    if "GiB" in text and cause.value is not None and cause.bound is not None:
        assert f"{cause.value - cause.bound:.1f} GiB too little" in text


@pytest.mark.parametrize("reason", list(Reason))
def test_no_text_has_a_term_of_the_code(reason: Reason) -> None:
    cause = EXAMPLES[reason]
    texts = [sentence(cause), briefly([cause]), in_general([cause])]
    names = set.union(*map(kinds, (AnyConstraint, AnyDispatch, AnyOrder, AnyScorer)))
    for text in texts:
        words = set(re.findall(r"[a-z_0-9]+", text.lower()))
        assert not TERMS.search(text), text
        assert not {name for name in names if "_" in name} & words, text


@pytest.mark.parametrize("reason", list(Reason))
def test_other_figures_are_the_same_reason_in_general(reason: Reason) -> None:
    cause = EXAMPLES[reason]
    other = replace(
        cause,
        gpus=cause.gpus and cause.gpus + 7,
        value=cause.value and cause.value * 2,
        job=cause.job and "team-b/other",
    )
    assert in_general([cause]) == in_general([other])
    assert not re.search(r"\d", in_general([cause]).replace(cause.amount or "-", ""))


def test_what_counts_is_the_first_that_says_more_than_what_the_job_asks_for() -> None:
    needs, taken = EXAMPLES[Reason.NEEDS_GPUS], EXAMPLES[Reason.PLACES_TAKEN]
    assert first_of([needs, taken]) is taken
    assert first_of([needs]) is needs
    assert first_of([]) is None
    assert kind_of([needs, EXAMPLES[Reason.MEMORY]]) == "memory"
    assert kind_of([], "Held") == "held"
    assert kind_of([], "Waiting") == "other"
    assert kind_of([], "SomethingElse") == "other"


def test_a_row_of_a_list_has_what_counts_with_its_figures() -> None:
    needs, memory = EXAMPLES[Reason.NEEDS_GPUS], EXAMPLES[Reason.MEMORY]
    assert briefly([needs, memory]) == (
        "The memory is too small: 17.4 GiB needed, 15.6 GiB there, 1.8 GiB too little"
    )
    assert briefly([EXAMPLES[Reason.WAITING_IS_BETTER]]).startswith("It fits next to other jobs")
    assert briefly([EXAMPLES[Reason.RUNNING]]) == "It runs: 2 pods"
    assert briefly([]) == ""


def test_one_gpu_or_several_with_the_figures_of_one() -> None:
    memory = EXAMPLES[Reason.MEMORY]
    assert sentence(memory.on(gpus=1)).startswith("On 1 GPU, the memory is too small (17.4 GiB")
    assert "(on one of them 17.4 GiB" in sentence(memory.on(gpus=3))
    assert sentence(memory.on(gpu="n0/1")).startswith("On n0/1, the memory is too small (17.4")


def test_a_status_has_the_causes_their_sentences_and_the_reason_that_counts() -> None:
    causes = [EXAMPLES[Reason.NEEDS_GPUS], EXAMPLES[Reason.PLACES_TAKEN]]
    status = lifecycle.waiting(GPUJobStatus(), Reason.WAITING, causes, 3, NOW)
    assert status.reason == "Waiting"
    assert status.message == in_full(causes)
    assert status.found_at == rfc3339(NOW)
    (condition,) = status.conditions
    assert (condition.type, condition.reason) == ("Scheduled", "PlacesTaken")
    assert GPUJobStatus.model_validate(status.wire()) == status


def test_texts_are_as_long_as_the_api_server_takes() -> None:
    long = Cause(Reason.MAKING_ROOM, job="j" * 5000, namespace="n" * 500)
    causes = [long, *[EXAMPLES[Reason.MEMORY]] * 40]
    status = lifecycle.waiting(GPUJobStatus(), Reason.WAITING, causes, 0, NOW)
    assert len(status.message) <= LONGEST_TEXT
    assert len(status.causes) == MOST_CAUSES
    assert GPUJobStatus.model_validate(status.wire()) == status


def test_objects_of_other_versions_are_read() -> None:
    earlier = {"phase": "Queued", "reason": "Waiting", "message": "wants 1 GPU(s) on one node"}
    status = GPUJobStatus.model_validate(earlier)
    assert (status.causes, status.found_at) == ([], None)
    assert status.message == earlier["message"]
    said = {"reason": "PlacesTaken", "value": 2.0, "bound": 2.0, "gpus": 1}
    later = {**earlier, "causes": [{"reason": "OfALaterVersion"}, {**said, "more": "of later"}, 7]}
    assert GPUJobStatus.model_validate(later).causes == [
        Cause(Reason.PLACES_TAKEN, gpus=1, value=2.0, bound=2.0)
    ]
    assert len(understood([said] * 50)) == MOST_CAUSES


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        (Reason.RUNNING, "2 pods running", "2 pods running"),
        (Reason.STARTING, "3 of them run; train-3", "3 of them run; train-3"),
        (
            Reason.ROLES,
            "worker: 2 pods",
            "Each of its roles would find GPUs, but not all at the same time (worker: 2 pods). It"
            " starts when there are GPUs for all of them.",
        ),
    ],
)
def test_causes_of_earlier_versions_have_their_words(
    reason: Reason, detail: str, text: str
) -> None:
    """Earlier versions wrote whole sentences of some reasons as `detail`."""
    (cause,) = understood([{"reason": reason.value, "detail": detail}])
    assert sentence(cause) == text
    assert detail in briefly([cause])


def test_figures_that_an_earlier_definition_drops_leave_a_sentence() -> None:
    for reason, words in WORDS.items():
        if "{" in words.says:
            continue
        text = sentence(Cause(reason))
        assert text.endswith("."), text
        assert "None " not in text.removeprefix("None of its pods")
        assert "{" not in text


def test_the_page_is_that_of_the_reasons() -> None:
    assert PAGE.read_text() == page(), "make generate"
    assert set(EXAMPLES) == set(WORDS) == set(Reason)
