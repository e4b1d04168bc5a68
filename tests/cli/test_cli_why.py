"""What `tandem why` says of roles and of measurements."""

from __future__ import annotations

from typing import Any

from tandem.cli.questions import answers

JOB: dict[str, Any] = {
    "namespace": "ml",
    "name": "pytorchjob-bert",
    "workload": {"kind": "PyTorchJob", "name": "bert"},
    "phase": "Running",
    "startedAt": None,
    "why": [],
    "places": [],
    "neighbours": [],
    "demand": {"gpusPerPod": 1, "gangSize": 3},
}


def test_each_role_has_its_pods_and_gpus() -> None:
    roles = [
        {"name": "worker", "pods": 2, "demand": {"gpusPerPod": 4}},
        {"name": "master", "pods": 1, "demand": {"gpusPerPod": 1}},
    ]
    (line,) = (each for each in answers(JOB | {"roles": roles}, "") if "roles" in each)
    said = "worker: 2 pods with 4 GPUs each; master: 1 pod with 1 GPU each"
    assert line.split(maxsplit=1) == ["roles", said]
    assert not any("roles" in each for each in answers(JOB | {"roles": []}, ""))


def test_a_job_of_which_only_a_peak_is_known_so_far_has_no_time() -> None:
    seen = {"memoryPeakBytes": 3 << 30, "utilisationPercent": None, "seconds": 0.4}
    (line,) = (each for each in answers(JOB | {"observed": seen}, "") if "measured" in each)
    assert line.split(maxsplit=1) == ["measured", "3.0 GiB at most"]
    (line,) = (
        each
        for each in answers(JOB | {"observed": seen | {"seconds": 90.0}}, "")
        if "measured" in each
    )
    assert line.endswith(", in 2m")
