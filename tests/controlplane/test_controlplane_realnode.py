"""What is read of a real node, without starting any."""

from __future__ import annotations

import shutil
from pathlib import Path

from controlplane.realnode.node import processes_of_pods


def test_processes_are_found_by_pod_and_container_in_every_class_of_service(tmp_path: Path) -> None:
    for group, pids in {
        "": "1",
        "burstable": "2",
        "burstable/podaaa": "3",
        "burstable/podaaa/c1": "10\n11",
        "burstable/podaaa/c1/own": "12",
        "besteffort/podbbb/c2": "20",
        "podccc/c3": "30",
    }.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cgroup.procs").write_text(f"{pids}\n")
    assert set(processes_of_pods(tmp_path)) == {
        ("aaa", "c1", 10),
        ("aaa", "c1", 11),
        ("aaa", "c1", 12),
        ("bbb", "c2", 20),
        ("ccc", "c3", 30),
    }


def test_control_groups_that_end_while_they_are_read_are_passed_over(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "burstable" / f"pod{name}" / "c1").mkdir(parents=True)
        (tmp_path / "burstable" / f"pod{name}" / "c1" / "cgroup.procs").write_text("7\n")
    found = processes_of_pods(tmp_path)
    first, _, _ = next(found)
    for pod in (tmp_path / "burstable").iterdir():
        if pod.name != f"pod{first}":
            shutil.rmtree(pod)
    assert list(found) == []
