"""The two sockets of a DRA driver: kubelet finds it by one, and asks by the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from node_agent.dra import DRIVER
from node_agent.dra.claims import ClaimError, ClaimRef
from node_agent.dra.driver import Driver
from node_agent.dra.messages import (
    DRA,
    DRA_SERVICE,
    DRA_VERSION,
    PLUGIN_TYPE,
    REGISTRATION,
    REGISTRATION_SERVICE,
    Message,
    MessageClass,
)

log = logging.getLogger(__name__)

#: Kubelet's own folder, where it looks for the sockets of drivers.
KUBELET = Path("/var/lib/kubelet")
#: Kubelet prepares a few pods at a time.
_THREADS = 4
_STOP_S = 5.0

Method = Callable[[Any, Any], Any]


class Services:
    """Serves `driver` below the folder `kubelet`; `registered` is called with what kubelet says.

    It is given an empty text, or why kubelet refuses the driver.
    """

    def __init__(self, driver: Driver, kubelet: Path, registered: Callable[[str], None]) -> None:
        self._driver = driver
        self._registered = registered
        self.endpoint = kubelet / "plugins" / DRIVER / "dra.sock"
        self.registration = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._servers: list[tuple[Any, Path]] = []

    def start(self) -> None:
        """Listen; a socket that a killed driver has left is replaced."""
        self._listen(
            self.endpoint,
            DRA_SERVICE,
            {
                "NodePrepareResources": (self._prepare, DRA["NodePrepareResourcesRequest"]),
                "NodeUnprepareResources": (self._unprepare, DRA["NodeUnprepareResourcesRequest"]),
            },
        )
        # The last one: kubelet calls as soon as it sees it.
        self._listen(
            self.registration,
            REGISTRATION_SERVICE,
            {
                "GetInfo": (self._info, REGISTRATION["InfoRequest"]),
                "NotifyRegistrationStatus": (self._notify, REGISTRATION["RegistrationStatus"]),
            },
        )

    def stop(self) -> None:
        """Finish what is being answered, and remove the sockets: kubelet forgets the driver."""
        for server, path in reversed(self._servers):
            server.stop(_STOP_S).wait()
            path.unlink(missing_ok=True)
        self._servers.clear()

    def _listen(
        self, path: Path, service: str, methods: Mapping[str, tuple[Method, MessageClass]]
    ) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix=path.stem))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (method, request) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append((server, path))

    # --- pluginregistration -------------------------------------------------------------------

    def _info(self, _request: object, _context: object) -> Message:
        return REGISTRATION["PluginInfo"](
            type=PLUGIN_TYPE,
            name=DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=[DRA_VERSION],
        )

    def _notify(self, status: Message, _context: object) -> Message:
        refused = "" if status.plugin_registered else status.error or "kubelet gives no reason"
        self._registered(refused)
        return REGISTRATION["RegistrationStatusResponse"]()

    # --- dra ----------------------------------------------------------------------------------

    def _prepare(self, request: Message, _context: object) -> Message:
        response = DRA["NodePrepareResourcesResponse"]()
        for claim in request.claims:
            answer = response.claims[claim.uid]
            try:
                prepared = self._driver.prepare(ClaimRef(claim.namespace, claim.name, claim.uid))
            except ClaimError as error:
                log.warning("not prepared uid=%r error=%r", claim.uid, str(error))
                answer.error = str(error)
                continue
            for each in prepared:
                answer.devices.add(
                    request_names=[each.given.request],
                    pool_name=self._driver.node,
                    device_name=each.given.device,
                    cdi_device_ids=each.cdi_ids,
                    share_id=each.given.share,
                )
        return response

    def _unprepare(self, request: Message, _context: object) -> Message:
        response = DRA["NodeUnprepareResourcesResponse"]()
        for claim in request.claims:
            answer = response.claims[claim.uid]
            try:
                self._driver.unprepare(ClaimRef(claim.namespace, claim.name, claim.uid))
            except ClaimError as error:
                log.warning("not unprepared uid=%r error=%r", claim.uid, str(error))
                answer.error = str(error)
        return response
