"""The workloads that own the pods of gangs, at a version that the API server serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scheduler_extender.cluster.records import GpuJobRecord
from scheduler_extender.cluster.workloads import kind_of, resource_of
from scheduler_extender.cluster.writes import Writer
from tandem.kube.errors import Forbidden, Invalid, NotFound, Replaced
from tandem.kube.resource import Resource

Object = dict[str, Any]


class Owners:
    """Reads and suspends workloads. All methods run on the event loop."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def get(self, record: GpuJobRecord) -> Object:
        """Return the workload of a gang; see `read`.

        Raises:
            NotFound: also where another workload has the name by now.
        """
        workload = record.spec.workload
        resource = resource_of(workload)
        if resource is None:
            raise NotFound(404, f"nothing is known of the kind {workload.kind}")
        found = await self.read(resource, workload.name, record.namespace)
        if found["metadata"]["uid"] != workload.uid:
            raise NotFound(404, f"another {workload.kind} has the name {workload.name} by now")
        return found

    async def read(self, resource: Resource, name: str, namespace: str) -> Object:
        """Return an object, at the version of `resource` or at another one that is served.

        Raises:
            NotFound: it does not exist, or no version of it is served.
        """
        return await self._at_served_version(
            resource, name, lambda served: self._writer.api.get(served, name, namespace)
        )

    async def suspend(self, record: GpuJobRecord, suspend: bool) -> str:
        """Suspend or resume the workload of a gang; return why that is not possible, or ''."""
        workload, path = record.spec.workload, kind_of(record.spec.workload).suspend
        body: Any = suspend
        for part in reversed(path):
            body = {part: body}
        body["metadata"] = {"uid": workload.uid}

        def patch(served: Resource) -> Object:
            return self._writer.api.patch(served, workload.name, body, record.namespace)

        resource = resource_of(workload)
        if resource is None:
            return f"nothing is known of the kind {workload.kind}"
        try:
            answer: Any = await self._at_served_version(resource, workload.name, patch)
        except Replaced:
            return f"another {workload.kind} has the name {workload.name} by now"
        except (NotFound, Forbidden, Invalid) as error:
            return str(error)
        for part in path:
            answer = answer.get(part) if isinstance(answer, Mapping) else None
        # The API server drops what the definition of a custom resource does not name.
        has_field = bool(answer) is suspend
        return "" if has_field else f"{workload.api_version} has no field {'.'.join(path)}"

    async def _at_served_version(
        self, resource: Resource, name: str, request: Callable[[Resource], Object]
    ) -> Object:
        """Make a request at the version of `resource`, else at one that is served.

        An upgrade of an operator may end the version under which a workload was created.
        """
        answer: Object
        try:
            answer = await self._writer.call(request, resource)
            return answer
        except NotFound as error:
            if error.details.get("name") == name:
                raise  # the version is served, and the object is gone
            gone = error
        for version in await self._writer.call(self._writer.api.versions, resource):
            if version != resource.version:
                try:
                    answer = await self._writer.call(request, replace(resource, version=version))
                    return answer
                except NotFound as error:
                    gone = error
        raise gone
