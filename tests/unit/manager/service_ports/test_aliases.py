"""Services under a name that the image does not declare."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import ServiceState
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.service_ports.service import ServicePorts, ServiceRequest
from ai.backend.manager.sessions.model import Session
from tests.contract.store.builders import AGENT, make_session

CALLER = cast("Caller", None)


class Agent:
    """An agent that records the names of services; also a finder of the one session."""

    def __init__(self, *names: str) -> None:
        ports = tuple({"name": name, "protocol": "http", "container_ports": [8090]} for name in names)
        session = make_session()
        kernel = replace(session.main, agent=AGENT, service_ports=ports)
        self.session = replace(session, kernels=(kernel,), status=SessionStatus.RUNNING)
        self.names: list[str] = []

    async def one(self, *_: Any, **__: Any) -> Session:
        return self.session

    def agent(self, _: str) -> Agent:
        return self

    async def start_service(self, request: Any) -> ServiceState:
        self.names.append(request.name)
        return ServiceState(name=request.name, protocol="http", status="running")

    async def stop_service(self, request: Any) -> None:
        self.names.append(request.name)

    async def list_services(self, _: Any) -> list[ServiceState]:
        return [ServiceState(name="jupyterlab", protocol="http", status="running")]


@pytest.mark.parametrize(
    ("declared", "meant", "listed"),
    [
        (["sshd", "jupyterlab"], "jupyterlab", ["sshd", "jupyterlab", "jupyter"]),
        (["jupyter", "jupyterlab"], "jupyter", ["jupyter", "jupyterlab"]),
        (["sshd"], "jupyter", ["sshd"]),
    ],
)
async def test_jupyter_is_jupyterlab_where_there_is_no_other(
    declared: list[str], meant: str, listed: list[str]
) -> None:
    agent = Agent(*declared)
    services = ServicePorts(cast("Any", agent), cast("Any", agent), cast("Any", None))
    await services.start(CALLER, "s", ServiceRequest(app="jupyter"))
    await services.stop(CALLER, "s", "jupyter")
    assert agent.names == [meant, meant]
    offered = await services.list(CALLER, "s")
    assert [service.name for service in offered] == listed
    running = [service.name for service in offered if service.state is not None]
    assert running == [name for name in listed if name == "jupyterlab" or (name == "jupyter" and meant == "jupyterlab")]
