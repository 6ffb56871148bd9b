"""Starting, stopping and listing services of sessions over REST."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import AsyncSession
from tests.component.manager.api.conftest import Api


async def post(api: Api, path: str, body: Any) -> Any:
    return await api.user.request("POST", f"/session/runs/{path}", json=body)


async def test_start_list_and_stop(api: Api) -> None:
    await api.create(name="runs")
    apps = (await api.user.request("GET", "/stream/session/runs/apps")).json()
    assert apps == [{"name": "sshd", "protocol": "tcp", "ports": [], "status": "stopped"}]
    # As the published client has it: JSON within JSON, and the token of a web server.
    started = {"app": "sshd", "envs": json.dumps({"A": "b"}), "arguments": json.dumps({"-v": None}), "port": 2200}
    reply = await post(api, "start-service", {**started, "login_session_token": "x"})
    assert (reply.status, reply.json()) == (200, {"name": "sshd", "protocol": "tcp", "status": "running"})
    (app,) = (await api.user.request("GET", "/stream/session/runs/apps")).json()
    assert app["status"] == "running"
    for body in ({"service_name": "sshd"}, {"app": "sshd"}):
        reply = await post(api, "shutdown-service", body)
        assert (reply.status, reply.json()) == (200, {})
    (app,) = (await api.user.request("GET", "/stream/session/runs/apps")).json()
    assert app["status"] == "stopped"


async def test_the_sdk_starts_a_service(api: Api) -> None:
    await api.create(name="runs")
    config = APIConfig(
        endpoint=f"http://127.0.0.1:{api.port}", access_key=api.user.access_key, secret_key=api.user.secret_key
    )
    async with AsyncSession(config=config) as sdk:
        session = sdk.ComputeSession("runs")
        state = await session.start_service("sshd", envs={"A": "b"}, arguments={"-v": None}, login_session_token="x")
        assert (state["name"], state["protocol"], state["status"]) == ("sshd", "tcp", "running")
        (app,) = await session.stream_app_info()
        assert (app["name"], app["status"]) == ("sshd", "running")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("start-service", {"app": "nothing"}, 404),
        ("shutdown-service", {"service_name": "nothing"}, 404),
        ("start-service", {}, 400),
        ("start-service", {"app": ""}, 400),
        ("start-service", {"app": "x" * 65}, 400),
        ("start-service", {"app": "sshd", "port": 0}, 400),
        ("start-service", {"app": "sshd", "envs": "{"}, 400),
        ("start-service", {"app": "sshd", "arguments": "[]"}, 400),
        ("start-service", {"app": "sshd", "envs": {"A": {"b": 1}}}, 400),
        ("shutdown-service", {}, 400),
    ],
)
async def test_what_is_refused(api: Api, path: str, body: Any, status: int) -> None:
    await api.create(name="runs")
    assert (await post(api, path, body)).status == status


async def test_a_session_that_does_not_run_serves_nothing(api: Api) -> None:
    api.agent.stall = True
    await api.create(name="runs", enqueueOnly=True)
    assert (await post(api, "start-service", {"app": "sshd"})).status == 409
    assert (await api.user.request("GET", "/stream/session/runs/apps")).json() == []
    assert (await api.other.request("GET", "/stream/session/runs/apps")).status == 404
