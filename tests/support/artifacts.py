"""Asking a storage proxy for artifacts, as a manager does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from yarl import URL

from tests.support.storage_proxy import MANAGER_SECRET, SECRET_HEADER, Answer, Caller


class ArtifactAnswer(Answer):
    @property
    def code(self) -> str:
        return str(self.json["type"]).rpartition("/")[2]


class ArtifactCaller(Caller):
    async def send(self, method: str, url: str, **options: Any) -> ArtifactAnswer:
        async with self.http.request(method, URL(url, encoded=True), **options) as response:
            return ArtifactAnswer(response.status, response.headers, await response.read())

    async def post(self, path: str, /, **body: Any) -> ArtifactAnswer:
        data = json.dumps(body, default=str).encode()
        headers = {SECRET_HEADER: MANAGER_SECRET, "Content-Type": "application/json"}
        return await self.send("POST", self.manager_url + path, data=data, headers=headers)

    async def storages(self) -> dict[str, dict[str, Any]]:
        answer = await self.send(
            "GET", f"{self.manager_url}/artifacts/storages", headers={SECRET_HEADER: MANAGER_SECRET}
        )
        return {storage["name"]: storage for storage in answer.json["storages"]}

    async def import_answer(
        self, revision: UUID, url: str, *, attempt: int = 1, stages: Any = None, source: Any = None, **own: Any
    ) -> ArtifactAnswer:
        kind = own.pop("type", "MODEL")
        hub = {"type": "huggingface", "url": url, "name": "org/model", "version": "main", **own}
        return await self.post(
            "/artifacts/import",
            revision_id=revision,
            attempt=attempt,
            type=kind,
            name="org/model",
            version="main",
            source=source or hub,
            stages=stages or {},
        )

    async def import_hub(self, revision: UUID, url: str, **own: Any) -> dict[str, Any]:
        answer = await self.import_answer(revision, url, **own)
        assert answer.status == 202, answer.body
        state: dict[str, Any] = answer.json
        return state

    async def import_from(self, source: dict[str, Any], revision: UUID, **own: Any) -> dict[str, Any]:
        return await self.import_hub(revision, "", source=source, **own)

    async def ended(self, revision: UUID, attempt: int = 1, *, timeout_s: float = 40.0) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await self.post("/artifacts/import/status", revision_id=revision, attempt=attempt)
                assert answer.status == 200, answer.body
                state: dict[str, Any] = answer.json
                if state["phase"] in ("done", "failed", "cancelled"):
                    return state
                await asyncio.sleep(0.02)

    async def reaches(self, revision: UUID, count: int, attempt: int = 1) -> None:
        """Wait until so many bytes of a phase are there."""
        async with asyncio.timeout(40):
            while True:
                answer = await self.post("/artifacts/import/status", revision_id=revision, attempt=attempt)
                if answer.json["current"] >= count:
                    return
                await asyncio.sleep(0.02)

    async def imported(self, url: str, **own: Any) -> UUID:
        revision = uuid4()
        await self.import_hub(revision, url, **own)
        state = await self.ended(revision)
        assert state["phase"] == "done", state
        return revision

    async def failure(self, revision: UUID, url: str, **own: Any) -> dict[str, Any]:
        """The problem of an import that must fail."""
        await self.import_hub(revision, url, **own)
        state = await self.ended(revision)
        assert state["phase"] == "failed", state
        error: dict[str, Any] = state["error"]
        return error

    async def ticket(self, revision: UUID) -> str:
        found = (await self.post("/artifacts/ticket", revision_id=revision)).json
        return f"{found['url']}?token={found['token']}"

    async def mounted(self, revision: UUID) -> Path:
        async with asyncio.timeout(40):
            while True:
                answer = await self.post("/artifacts/mount", revision_id=revision)
                assert answer.status == 200, answer.body
                if answer.json["path"] is not None:
                    return Path(answer.json["path"])
                await asyncio.sleep(0.02)

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  # what is waited for happens in another process or server
                await asyncio.sleep(0.01)
