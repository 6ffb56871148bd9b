"""A client of the Kubernetes API without a server: objects in memory, and watches that answer what a script says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from ai.backend.common.errors import DeadlineExceeded
from ai.backend.infra.retry import Backoff
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict, ObjectExists, ObjectNotFound
from ai.backend.node.kube_api.resources import Resource

HANG = "hang"
"""A step of a script: the connection stays open, and nothing comes."""
Step = bytes | Exception | str


class ScriptedKube:
    """Answers each watch with the next script: chunks, errors to raise, or HANG. The last script stays open."""

    def __init__(self, *scripts: Sequence[Step]) -> None:
        self._scripts = list(scripts)
        self.queries: list[dict[str, str]] = []
        self.lists: list[tuple[list[Any], str] | Exception] = []
        self.failures: list[Exception] = []
        """Raised by the next reads and writes of objects."""
        self.stored: dict[str, dict[str, Any]] = {}
        self._version = 0
        self.exhausted = asyncio.Event()

    @property
    def api(self) -> KubeApi:
        return cast("KubeApi", self)

    def delays(self) -> Backoff:
        return Backoff(0.5, 30.0)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.queries.append(dict(query))
        if not self._scripts:
            self.exhausted.set()
        script: Sequence[Step] = self._scripts.pop(0) if self._scripts else [HANG]

        async def chunks() -> AsyncIterator[bytes]:
            for step in script:
                await asyncio.sleep(0)
                if isinstance(step, bytes):
                    yield step
                elif isinstance(step, Exception):
                    raise step
                else:
                    await asyncio.sleep(silence_s)
                    raise DeadlineExceeded("nothing was said")

        yield chunks()

    async def list_readable(
        self, resource: Resource[Any], namespace: str = "", **selectors: str
    ) -> tuple[list[Any], str]:
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find(self, resource: Resource[Any], name: str, namespace: str = "") -> Any:
        try:
            return await self.get(resource, name, namespace)
        except ObjectNotFound:
            return None

    async def get(self, resource: Resource[Any], name: str, namespace: str = "") -> Any:
        self._maybe_fail()
        if name not in self.stored:
            raise ObjectNotFound(name)
        return msgspec.convert(self.stored[name], resource.type)

    async def create(self, resource: Resource[Any], body: Mapping[str, Any], namespace: str = "") -> Any:
        self._maybe_fail()
        name = body["metadata"]["name"]
        if name in self.stored:
            raise ObjectExists(name)
        return self._store(name, {"metadata": {**body["metadata"], "uid": "u-1"}, "spec": dict(body["spec"])}, resource)

    async def patch(self, resource: Resource[Any], name: str, body: Mapping[str, Any], namespace: str = "") -> Any:
        self._maybe_fail()
        present = self.stored[name]
        if body["metadata"]["resourceVersion"] != present["metadata"]["resourceVersion"]:
            raise ObjectConflict(name)
        return self._store(name, {**present, "spec": {**present["spec"], **body["spec"]}}, resource)

    def _store(self, name: str, obj: dict[str, Any], resource: Resource[Any]) -> Any:
        self._version += 1
        self.stored[name] = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        return msgspec.convert(self.stored[name], resource.type)

    def _maybe_fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
