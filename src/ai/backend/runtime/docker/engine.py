"""Typed calls of the Docker engine over aiodocker, with our errors."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import aiodocker
import aiohttp

from ai.backend.common.errors import Unavailable, WorkloadError

CALL_TIMEOUT_S = 60.0
COMMIT_TIMEOUT_S = 3600.0
SILENCE_S = 300.0
"""How long a transfer may be silent: engines unpack large layers without progress."""
DEFAULT_HOST = "unix:///var/run/docker.sock"
LOG_LINES = 2000
_ENDING = frozenset(str(int(number)) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM))
Container = dict[str, Any]


class EngineRefusal(WorkloadError):
    """The engine refused a call. ``status`` is that of HTTP: 404 is no such thing, 409 a conflict."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Ignored:
    """Ends its block at a refusal with one of the statuses; at any refusal if there are none."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, EngineRefusal) and (not self._statuses or error.status in self._statuses)


@contextmanager
def _translated() -> Iterator[None]:
    """Translates the errors of aiodocker into EngineRefusal or Unavailable."""
    try:
        yield
    except aiodocker.DockerError as error:
        if error.status in (0, 900):
            raise Unavailable(f"the Docker engine does not answer: {error.message}") from error
        raise EngineRefusal(error.status, str(error.message)) from error
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise Unavailable(f"the Docker engine does not answer: {str(error) or type(error).__name__}") from error


class Engine:
    """A connection pool to one engine. Every call raises Unavailable if the engine does not answer."""

    def __init__(self, host: str | None) -> None:
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self._docker: aiodocker.Docker | None = None

    def _client(self) -> aiodocker.Docker:
        if self._docker is None:
            with _translated():
                self._docker = aiodocker.Docker(url=self.host)
        return self._docker

    @asynccontextmanager
    async def _call(self, timeout_s: float = CALL_TIMEOUT_S) -> AsyncIterator[aiodocker.Docker]:
        """Yields the client for one call with a timeout and our errors."""
        with _translated():
            async with asyncio.timeout(timeout_s):
                yield self._client()

    async def close(self) -> None:
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()

    async def info(self) -> Container:
        """Returns the engine's information, with ``ApiVersion`` added."""
        async with self._call() as docker:
            info = dict(await docker.system.info())
            return {**info, "ApiVersion": (await docker.version())["ApiVersion"]}

    # -- images and networks

    async def images(self) -> Sequence[Container]:
        async with self._call() as docker:
            images: list[Container] = await docker.images.list()
            return images

    async def image(self, name: str) -> Container | None:
        """Returns the image's description; None if the engine has none of this name."""
        with _Ignored():
            async with self._call() as docker:
                return dict(await docker.images.inspect(name))
        return None

    async def networks(self, labels: Sequence[str] = ()) -> Sequence[Container]:
        """Returns the networks that have all of the labels."""
        async with self._call() as docker:
            filters = {"label": list(labels)} if labels else None
            networks: list[Container] = await docker.networks.list(filters=filters)
            return networks

    async def network(self, network_id: str) -> Container | None:
        """Returns a network with its containers; None if there is no such network."""
        with _Ignored(404):
            async with self._call() as docker:
                return dict(await (await docker.networks.get(network_id)).show())
        return None

    async def create_network(self, body: Mapping[str, Any]) -> str:
        """Creates a network and returns its id. Raises EngineRefusal."""
        async with self._call() as docker:
            return str((await docker.networks.create(dict(body))).id)

    async def remove_network(self, network_id: str) -> None:
        """Removes a network, if it exists. Raises EngineRefusal while a container is in it."""
        with _Ignored(404):
            async with self._call() as docker:
                await (await docker.networks.get(network_id)).delete()

    async def disconnect(self, network_id: str, container_id: str) -> None:
        """Disconnects a container from a network, if it is in it."""
        with _Ignored():
            async with self._call() as docker:
                network = await docker.networks.get(network_id)
                await network.disconnect({"Container": container_id, "Force": True})

    async def connect(self, network_id: str, container_id: str, aliases: Sequence[str]) -> None:
        async with self._call() as docker:
            network = await docker.networks.get(network_id)
            await network.connect({"Container": container_id, "EndpointConfig": {"Aliases": list(aliases)}})

    def pull(self, repository: str, tag: str, login: tuple[str, str] | None, registry: str) -> AsyncIterator[Container]:
        """Yields the engine's messages while it pulls an image; a failure may come as ``error`` in one of them."""
        return self._post("images/create", {"fromImage": repository, "tag": tag}, login, registry)

    def push(self, repository: str, tag: str, login: tuple[str, str] | None, registry: str) -> AsyncIterator[Container]:
        """Yields the engine's messages while it pushes an image, as :meth:`pull`."""
        return self._post(f"images/{repository}/push", {"tag": tag}, login or ("", ""), registry)

    async def load(self, archive: Path) -> AsyncIterator[Container]:
        """Loads the images of an archive of ``docker save``."""
        with archive.open("rb") as file:
            async for line in self._post("images/load", {"quiet": "1"}, None, "", file):
                yield line

    async def _post(
        self,
        path: str,
        params: dict[str, Any],
        login: tuple[str, str] | None,
        registry: str,
        data: BinaryIO | None = None,
    ) -> AsyncIterator[Container]:
        headers = {"Content-Type": "application/x-tar"} if data is not None else {}
        if login is not None:
            credentials = {"username": login[0], "password": login[1], "serveraddress": registry}
            headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(credentials).encode()).decode()
        patience = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        with _translated():
            query = self._client()._query(path, "POST", params=params, headers=headers, data=data, timeout=patience)
            async with query as answer:
                async for line in answer.content:
                    with suppress(json.JSONDecodeError):
                        yield dict(json.loads(line))

    async def remove_image(self, name: str) -> None:
        async with self._call() as docker:
            await docker.images.delete(name)

    async def commit(self, container_id: str, repository: str, tag: str) -> str:
        """Commits a container's root file system, which is paused meanwhile; returns the image's id."""
        with _translated():
            patience = aiohttp.ClientTimeout(total=COMMIT_TIMEOUT_S)
            params = {"container": container_id, "repo": repository, "tag": tag, "pause": "1"}
            async with self._client()._query("commit", "POST", params=params, data="{}", timeout=patience) as answer:
                return str((await answer.json())["Id"])

    async def save(self, name: str, target: Path) -> None:
        """Writes the image as an archive of ``docker save``. Raises OSError if the disk is full."""
        patience = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        with target.open("wb") as file:
            with _translated():
                answer = await self._client()._query(f"images/{name}/get", timeout=patience).__aenter__()
            try:
                async for piece in answer.content.iter_chunked(1 << 20):
                    await asyncio.to_thread(file.write, piece)
            finally:
                answer.close()

    # -- containers

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Creates a container and returns its id. One of the same name, of an interrupted creation, is removed."""
        with _Ignored(409):
            return await self._create(name, body)
        await self.remove(name)
        return await self._create(name, body)

    async def _create(self, name: str, body: Mapping[str, Any]) -> str:
        async with self._call() as docker:
            return str((await docker.containers.create(dict(body), name=name)).id)

    async def start(self, container_id: str) -> None:
        async with self._call() as docker:
            await docker.containers.container(container_id).start()

    async def inspect(self, container_id: str) -> Container | None:
        """Returns a container's description; None if there is no such container."""
        with _Ignored(404):
            async with self._call() as docker:
                return dict(await docker.containers.container(container_id).show())
        return None

    async def written_bytes(self, container_id: str) -> int:
        """Returns how many bytes the container wrote to its root file system. Raises EngineRefusal."""
        async with self._call(SILENCE_S) as docker:
            return int((await docker.containers.container(container_id).show(size="1")).get("SizeRw") or 0)

    async def list(self, labels: Sequence[str]) -> Sequence[Container]:
        """Returns the containers, ended ones too, that have all of the labels."""
        async with self._call() as docker:
            containers = await docker.containers.list(all=True, filters=json.dumps({"label": list(labels)}))
            return [dict(container._container) for container in containers]

    async def kill(self, container_id: str, signal: str) -> None:
        """Sends a signal to a container, unless it has ended."""
        with _Ignored():
            async with self._call() as docker:
                await docker.containers.container(container_id).kill(signal=signal)

    async def wait(self, container_id: str, timeout_s: float) -> bool:
        """Returns True if the container ends within the time, or is removed."""
        try:
            async with self._call(timeout_s) as docker:
                await docker.containers.container(container_id).wait(timeout=timeout_s + 5.0)
        except EngineRefusal as refusal:
            return refusal.status == 404
        except Unavailable as error:
            if isinstance(error.__cause__, TimeoutError):
                return False
            raise
        return True

    async def remove(self, container_id: str) -> None:
        """Removes a container with its anonymous volumes, running or not, if it exists."""
        with _Ignored(404, 409):  # 409: another removal is under way
            async with self._call() as docker:
                await docker.containers.container(container_id).delete(force=True, v=True)

    async def logs(self, container_id: str) -> bytes:
        """Returns the last lines of its output; empty if it is removed."""
        params = {"stdout": "1", "stderr": "1", "tail": str(LOG_LINES)}
        with _Ignored():
            async with (
                self._call() as docker,
                docker._query(f"containers/{container_id}/logs", params=params) as answer,
            ):
                return _demultiplexed(await answer.read())
        return b""

    async def stats(self, container_id: str) -> Container | None:
        """Returns one sample of the engine's statistics; None if the container is removed."""
        with _Ignored():
            async with self._call() as docker:
                samples = await docker.containers.container(container_id).stats(stream=False)
                return dict(samples[0]) if samples else None
        return None

    async def was_killed(self, container_id: str) -> bool:
        """Returns True if the engine was asked to end the container, as far as it remembers.

        Raises Unavailable also while the engine ends: then it takes no new connections, and ends containers itself.
        """
        filters = json.dumps({"container": [container_id], "event": ["kill"]})
        params = {"since": "1", "until": f"{time.time():.6f}", "filters": filters}
        with _translated():
            async with (
                asyncio.timeout(CALL_TIMEOUT_S),
                aiodocker.Docker(url=self.host) as afresh,
                afresh._query("events", params=params) as answer,
            ):
                lines = (await answer.read()).splitlines()
                return any(json.loads(line)["Actor"]["Attributes"].get("signal") in _ENDING for line in lines)

    async def events(self, label: str, since: float) -> AsyncIterator[Container]:
        """Yields the ends of containers with the label since a time (seconds of the epoch), until the engine ends."""
        docker = self._client()
        subscriber = docker.events.subscribe(create_task=False)  # type: ignore[no-untyped-call]  # as it comes
        filters = {"type": ["container"], "event": ["die", "destroy"], "label": [label]}
        stream = asyncio.create_task(docker.events.run(since=f"{since:.3f}", filters=json.dumps(filters)))
        try:
            while True:
                with _translated():
                    event = await subscriber.get()
                if event is None:
                    return
                yield dict(event)
        finally:
            stream.cancel()
            with suppress(Exception, asyncio.CancelledError):  # its failure ends the subscription too
                await stream


def _demultiplexed(stream: bytes) -> bytes:
    """Strips the header of each piece: eight bytes, with the length in the last four."""
    pieces, position = [], 0
    while position + 8 <= len(stream):
        end = position + 8 + int.from_bytes(stream[position + 4 : position + 8], "big")
        pieces.append(stream[position + 8 : end])
        position = end
    return b"".join(pieces)
