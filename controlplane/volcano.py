"""Volcano's Job, played as its controller does: Volcano's dependencies cannot be had here.

The definition is the one that Volcano ships. Its controller makes pods once Volcano's scheduler has
admitted the job's PodGroup (`enqueue`), which is played as admitted at once. Of the policies of a
job, `RestartJob` on `PodFailed` is played. Source: volcano.sh/volcano v1.15.1, pkg/controllers/job.
"""

from __future__ import annotations

from controlplane.plane import ControlPlane
from controlplane.players import Object, Player, phase

GROUP_VERSION = "batch.volcano.sh/v1alpha1"
_ENDED = ("Succeeded", "Failed")


class Controller(Player):
    """Makes the pods of each task, restarts a job of which one failed, says when it is over."""

    label = "volcano.sh/job-name"

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane, GROUP_VERSION, "jobs")

    def is_over(self, workload: Object) -> bool:
        """Say whether a job has completed or failed."""
        return _state(workload) in ("Completed", "Failed")

    def reconcile(self, workload: Object, pods: dict[str, Object]) -> None:
        """Do the next of: restart, make what is missing, complete or fail."""
        state = _state(workload)
        phases = [phase(pod) for pod in pods.values()]
        failed = phases.count("Failed")
        if failed and _restarts(workload):
            self.delete(workload, pods)
            return
        wanted = {pod["metadata"]["name"]: pod for pod in _pods(workload)}
        for name in wanted.keys() - pods.keys():
            self.create(workload, wanted[name])
        if pods.keys() == wanted.keys() and all(each in _ENDED for each in phases):
            enough = len(phases) - failed >= workload["spec"]["minAvailable"]
            self.write_status(workload, {"state": {"phase": "Completed" if enough else "Failed"}})
        elif state != "Running" and phases.count("Running") >= workload["spec"]["minAvailable"]:
            self.write_status(workload, {"state": {"phase": "Running"}})


def _state(job: Object) -> str:
    return str((job.get("status") or {}).get("state", {}).get("phase", ""))


def _restarts(job: Object) -> bool:
    return {"event": "PodFailed", "action": "RestartJob"} in job["spec"].get("policies", ())


def _pods(job: Object) -> list[Object]:
    name, spec = job["metadata"]["name"], job["spec"]
    found = []
    for task in spec["tasks"]:
        template = task["template"]
        metadata = template.get("metadata") or {}
        for index in range(task["replicas"]):
            said = {
                "volcano.sh/job-name": name,
                "volcano.sh/task-spec": task["name"],
                "volcano.sh/task-index": str(index),
            }
            scheduler = template["spec"].get("schedulerName") or spec.get("schedulerName")
            chosen = {"schedulerName": scheduler} if scheduler else {}
            found.append(
                {
                    "metadata": {
                        "name": f"{name}-{task['name']}-{index}",
                        "labels": {**metadata.get("labels", {}), **said},
                        "annotations": {**metadata.get("annotations", {}), **said},
                    },
                    "spec": {**template["spec"], **chosen},
                }
            )
    return found
