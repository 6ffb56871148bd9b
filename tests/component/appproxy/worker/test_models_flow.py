"""An endpoint from zero to use: a worker with its coordinator, and what a manager does there."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from tests.component.appproxy.worker.test_flow import HEADERS, running_coordinator, running_worker
from tests.support.engine import running_engine
from tests.support.proxy_apps import free_ports

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def test_a_request_wakes_its_endpoint_and_is_counted(tmp_path: Path) -> None:
    ports, endpoint, user, session, revision = free_ports(4), uuid4(), uuid4(), uuid4(), uuid4()
    owner = {"user_uuid": str(user), "group_id": "g", "domain_name": "default"}

    def body_of(*routes: dict[str, Any]) -> dict[str, Any]:
        return {
            "service_name": "llm",
            "tags": {"session": owner, "endpoint": {"id": str(endpoint)}},
            "apps": {"api": list(routes)},
            "serving": {"name": "llm", "models": ["m"]},
        }

    models = {"models_bind_addr": {"host": "127.0.0.1", "port": ports[3]}}
    async with (
        running_coordinator(tmp_path, ports[2]) as coordinator,
        running_worker(tmp_path, ports[2], ports, **models) as worker,
        running_engine("a") as engine,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.wait_for(worker.link.synchronized.wait(), 10)

        async def call(method: str, path: str, body: Any = None) -> Any:
            async with http.request(method, coordinator.url + path, json=body, headers=HEADERS) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        url = (await call("POST", f"/v2/endpoints/{endpoint}", body_of()))["endpoint"]
        wanted = {"user_uuid": str(user), "exp": str(int(time.time()) + 600)}
        token = (await call("POST", f"/v2/endpoints/{endpoint}/token", wanted))["token"]
        version = (await call("GET", "/v2/endpoints/loads"))["version"]
        waiting = asyncio.create_task(call("GET", f"/v2/endpoints/loads?since={version}&wait=20"))
        await asyncio.sleep(0.1)

        async def ask(base: str) -> str:
            fields = {"Authorization": f"Bearer {token}"}
            async with http.post(f"{base}/v1/chat/completions", json=CHAT, headers=fields) as response:
                assert response.status == 200, await response.text()
                return str(json.loads(await response.read())["id"])

        began = time.monotonic()
        asked = [asyncio.create_task(ask(url)) for _ in range(3)]
        (load,) = (await asyncio.wait_for(waiting, 5))["loads"]
        told_s = time.monotonic() - began
        assert load["queued"] >= 1
        assert told_s < 1.0, "the period of reports is two seconds: this one came at once"
        route = {
            "session_id": str(session),
            "kernel_host": "127.0.0.1",
            "kernel_port": engine.port,
            "revision": {"id": str(revision), "weight": 1.0},
        }
        await call("POST", f"/v2/endpoints/{endpoint}", body_of(route))
        assert [await asyncio.wait_for(each, 2) for each in asked] == ["a", "a", "a"]
        assert await ask(f"http://127.0.0.1:{ports[3]}") == "a"
        rows: list[Any] = []
        async with asyncio.timeout(15):
            while sum(row["usage"]["requests"] for row in rows) < 4:
                after = rows[-1]["id"] if rows else 0
                rows += (await call("GET", f"/v2/endpoints/usage?after={after}"))["rows"]
                await asyncio.sleep(0.05)
        usage = [row["usage"] for row in rows]
        assert {(row["endpoint"], row["user"], row["session"]) for row in usage} == {
            (str(endpoint), str(user), str(session))
        }
        assert sum(row["prompt_tokens"] for row in usage) == 44
        assert (await call("GET", "/v2/endpoints/loads"))["loads"][0]["queued"] == 0
