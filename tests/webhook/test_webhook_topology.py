"""Levels of topology in the annotations of jobs: those that an operator lists, and no others."""

import pytest
from admission_cases import ask, job, pod
from pydantic import ValidationError

from scheduler_extender.admission.config import AdmissionConfig
from tandem.contracts import names

RACK = "example.com/rack"
OURS = AdmissionConfig(topology_levels=("topology.kubernetes.io/zone", RACK))
ANNOTATIONS = (names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY)


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_a_level_of_the_cluster_is_let_through(name):
    assert ask(pod(annotations={name: RACK}), config=OURS).errors == []
    assert ask(pod(annotations={name: "topology.kubernetes.io/zone"})).errors == []


@pytest.mark.parametrize("name", ANNOTATIONS)
@pytest.mark.parametrize(
    ("body", "at"),
    [
        (pod, "metadata.annotations"),
        (lambda **asked: job(pod(**asked)), "spec.template.metadata.annotations"),
    ],
)
def test_another_level_is_refused_with_those_that_there_are(name, body, at):
    (error,) = ask(body(annotations={name: "rack"}), config=OURS).errors
    assert error.field == f"{at}[{name}]"
    assert error.detail == (
        f'"rack" is not allowed: the levels of this cluster are topology.kubernetes.io/zone, {RACK}'
    )


def test_a_cluster_may_have_no_levels():
    (error,) = ask(
        pod(annotations={names.REQUIRED_TOPOLOGY: RACK}), config=AdmissionConfig(topology_levels=())
    ).errors
    assert "this cluster has no levels" in error.detail


def test_a_value_that_is_no_label_is_refused_once():
    (error,) = ask(pod(annotations={names.REQUIRED_TOPOLOGY: "a/b/c"}), config=OURS).errors
    assert "must be the key of a label" in error.detail


@pytest.mark.parametrize(
    "levels", [("a/b/c",), ("rack", "rack"), ("",), tuple("abcdefghijklmnopq")]
)
def test_levels_that_cannot_be(levels):
    with pytest.raises(ValidationError):
        AdmissionConfig(topology_levels=levels)
