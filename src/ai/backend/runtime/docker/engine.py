"""Calls the Docker engine through aiodocker by typed methods, which raise the platform's errors."""

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
TRANSFER_SILENCE_S = 300.0
"""How long a transfer may be silent: engines unpack large layers without progress."""
DEFAULT_ENGINE_URL = "unix:///var/run/docker.sock"
MAX_LOG_LINES = 2000
_END_SIGNALS = frozenset(
    str(int(signal_number)) for signal_number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
)
Container = dict[str, Any]


class EngineRefusal(WorkloadError):
    """Reports a call that the engine refused. ``status`` is the HTTP status: 404 if not found, 409 for a conflict."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _IgnoredRefusals:
    """Ignores the engine's refusals in a ``with`` block.

    With arguments, ignores only the refusals with the given HTTP statuses.
    """

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses

    def __enter__(self) -> None: ...

    def __exit__(self, exception_type: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, EngineRefusal) and (not self._statuses or error.status in self._statuses)


@contextmanager
def _translated_errors() -> Iterator[None]:
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
    """Calls one Docker engine over a connection pool. Every call raises Unavailable if the engine does not answer."""

    def __init__(self, engine_url: str | None) -> None:
        self.host = engine_url or os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE_URL
        self._docker: aiodocker.Docker | None = None

    def _client(self) -> aiodocker.Docker:
        if self._docker is None:
            with _translated_errors():
                self._docker = aiodocker.Docker(url=self.host)
        return self._docker

    @asynccontextmanager
    async def _call(self, timeout_s: float = CALL_TIMEOUT_S) -> AsyncIterator[aiodocker.Docker]:
        """Yields the client for one call of the engine, which ends after ``timeout_s``.

        Errors of aiodocker in the block are translated into EngineRefusal or Unavailable.
        """
        with _translated_errors():
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

    async def image(self, image_name: str) -> Container | None:
        """Returns the image's description; None if the engine has none of this name."""
        with _IgnoredRefusals():
            async with self._call() as docker:
                return dict(await docker.images.inspect(image_name))
        return None

    async def networks(self, labels: Sequence[str] = ()) -> Sequence[Container]:
        """Returns the networks that have all of the labels."""
        async with self._call() as docker:
            filters = {"label": list(labels)} if labels else None
            networks: list[Container] = await docker.networks.list(filters=filters)
            return networks

    async def network(self, network_id: str) -> Container | None:
        """Returns a network with its containers; None if there is no such network."""
        with _IgnoredRefusals(404):
            async with self._call() as docker:
                return dict(await (await docker.networks.get(network_id)).show())
        return None

    async def create_network(self, create_body: Mapping[str, Any]) -> str:
        """Creates a network and returns its id. Raises EngineRefusal."""
        async with self._call() as docker:
            return str((await docker.networks.create(dict(create_body))).id)

    async def remove_network(self, network_id: str) -> None:
        """Removes a network, if it exists. Raises EngineRefusal while a container is in it."""
        with _IgnoredRefusals(404):
            async with self._call() as docker:
                await (await docker.networks.get(network_id)).delete()

    async def disconnect(self, network_id: str, container_id: str) -> None:
        """Disconnects a container from a network, if the network has the container."""
        with _IgnoredRefusals():
            async with self._call() as docker:
                network = await docker.networks.get(network_id)
                await network.disconnect({"Container": container_id, "Force": True})

    async def connect(self, network_id: str, container_id: str, aliases: Sequence[str]) -> None:
        async with self._call() as docker:
            network = await docker.networks.get(network_id)
            await network.connect({"Container": container_id, "EndpointConfig": {"Aliases": list(aliases)}})

    def pull(self, repository: str, tag: str, login: tuple[str, str] | None, registry: str) -> AsyncIterator[Container]:
        """Yields the engine's messages while it pulls an image; a failure may come as ``error`` in one of them."""
        return self._post_stream("images/create", {"fromImage": repository, "tag": tag}, login, registry)

    def push(self, repository: str, tag: str, login: tuple[str, str] | None, registry: str) -> AsyncIterator[Container]:
        """Yields the engine's messages while it pushes an image, as :meth:`pull`."""
        return self._post_stream(f"images/{repository}/push", {"tag": tag}, login or ("", ""), registry)

    async def load(self, archive: Path) -> AsyncIterator[Container]:
        """Yields the engine's messages while it loads the images of an archive of ``docker save``."""
        with archive.open("rb") as archive_file:
            async for message in self._post_stream("images/load", {"quiet": "1"}, None, "", archive_file):
                yield message

    async def tag(self, image_name: str, new_name: str) -> None:
        """Gives an image of the engine another name."""
        repository, _, tag = new_name.rpartition(":")
        async with self._call() as docker:
            await docker.images.tag(image_name, repository, tag=tag)

    async def _post_stream(
        self,
        path: str,
        query_parameters: dict[str, Any],
        login: tuple[str, str] | None,
        registry: str,
        request_body: BinaryIO | None = None,
    ) -> AsyncIterator[Container]:
        headers = {"Content-Type": "application/x-tar"} if request_body is not None else {}
        if login is not None:
            credentials = {"username": login[0], "password": login[1], "serveraddress": registry}
            headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(credentials).encode()).decode()
        timeout = aiohttp.ClientTimeout(total=None, sock_read=TRANSFER_SILENCE_S)
        with _translated_errors():
            request = self._client()._query(
                path, "POST", params=query_parameters, headers=headers, data=request_body, timeout=timeout
            )
            async with request as response:
                async for message_line in response.content:
                    with suppress(json.JSONDecodeError):
                        yield dict(json.loads(message_line))

    async def remove_image(self, image_name: str) -> None:
        async with self._call() as docker:
            await docker.images.delete(image_name)

    async def commit(self, container_id: str, repository: str, tag: str) -> str:
        """Commits a container's root file system, and returns the image's id. The container is paused meanwhile."""
        with _translated_errors():
            timeout = aiohttp.ClientTimeout(total=COMMIT_TIMEOUT_S)
            query_parameters = {"container": container_id, "repo": repository, "tag": tag, "pause": "1"}
            async with self._client()._query(
                "commit", "POST", params=query_parameters, data="{}", timeout=timeout
            ) as response:
                return str((await response.json())["Id"])

    async def save(self, image_name: str, archive_path: Path) -> None:
        """Writes the image as an archive of ``docker save``. Raises OSError if the disk is full."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=TRANSFER_SILENCE_S)
        with archive_path.open("wb") as archive_file:
            with _translated_errors():
                response = await self._client()._query(f"images/{image_name}/get", timeout=timeout).__aenter__()
            try:
                async for chunk in response.content.iter_chunked(1 << 20):
                    await asyncio.to_thread(archive_file.write, chunk)
            finally:
                response.close()

    # -- containers

    async def create(self, container_name: str, create_body: Mapping[str, Any]) -> str:
        """Creates a container and returns its id. Removes an earlier container of the same name."""
        with _IgnoredRefusals(409):
            return await self._create(container_name, create_body)
        await self.remove(container_name)
        return await self._create(container_name, create_body)

    async def _create(self, container_name: str, create_body: Mapping[str, Any]) -> str:
        async with self._call() as docker:
            return str((await docker.containers.create(dict(create_body), name=container_name)).id)

    async def start(self, container_id: str) -> None:
        async with self._call() as docker:
            await docker.containers.container(container_id).start()

    async def inspect(self, container_id: str) -> Container | None:
        """Returns a container's description; None if there is no such container."""
        with _IgnoredRefusals(404):
            async with self._call() as docker:
                return dict(await docker.containers.container(container_id).show())
        return None

    async def written_bytes(self, container_id: str) -> int:
        """Returns how many bytes the container wrote to its root file system. Raises EngineRefusal."""
        async with self._call(TRANSFER_SILENCE_S) as docker:
            return int((await docker.containers.container(container_id).show(size="1")).get("SizeRw") or 0)

    async def list(self, labels: Sequence[str]) -> Sequence[Container]:
        """Returns the running and ended containers that have all of the labels."""
        async with self._call() as docker:
            containers = await docker.containers.list(all=True, filters=json.dumps({"label": list(labels)}))
            return [dict(container._container) for container in containers]

    async def kill(self, container_id: str, signal_name: str) -> None:
        """Sends a signal to a container, unless it has ended."""
        with _IgnoredRefusals():
            async with self._call() as docker:
                await docker.containers.container(container_id).kill(signal=signal_name)

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
        with _IgnoredRefusals(404, 409):  # 409: another removal is under way
            async with self._call() as docker:
                await docker.containers.container(container_id).delete(force=True, v=True)

    async def logs(self, container_id: str) -> bytes:
        """Returns the last lines of a container's output; empty if the container is removed."""
        query_parameters = {"stdout": "1", "stderr": "1", "tail": str(MAX_LOG_LINES)}
        with _IgnoredRefusals():
            async with (
                self._call() as docker,
                docker._query(f"containers/{container_id}/logs", params=query_parameters) as response,
            ):
                return _strip_log_headers(await response.read())
        return b""

    async def stats(self, container_id: str) -> Container | None:
        """Returns one sample of the engine's statistics; None if the container is removed."""
        with _IgnoredRefusals():
            async with self._call() as docker:
                samples = await docker.containers.container(container_id).stats(stream=False)
                return dict(samples[0]) if samples else None
        return None

    async def was_killed(self, container_id: str) -> bool:
        """Returns True if the engine remembers a request to end the container.

        Raises Unavailable also while the engine ends: then it takes no new connections, and ends containers itself.
        """
        event_filters = json.dumps({"container": [container_id], "event": ["kill"]})
        query_parameters = {"since": "1", "until": f"{time.time():.6f}", "filters": event_filters}
        with _translated_errors():
            async with (
                asyncio.timeout(CALL_TIMEOUT_S),
                aiodocker.Docker(url=self.host) as fresh_client,
                fresh_client._query("events", params=query_parameters) as response,
            ):
                event_lines = (await response.read()).splitlines()
                return any(
                    json.loads(event_line)["Actor"]["Attributes"].get("signal") in _END_SIGNALS
                    for event_line in event_lines
                )

    async def events(self, label: str, since_time: float) -> AsyncIterator[Container]:
        """Yields the end events of containers with the label since a time (epoch seconds), until the engine ends."""
        docker = self._client()
        subscriber = docker.events.subscribe(create_task=False)  # type: ignore[no-untyped-call]  # as it comes
        event_filters = {"type": ["container"], "event": ["die", "destroy"], "label": [label]}
        stream_task = asyncio.create_task(
            docker.events.run(since=f"{since_time:.3f}", filters=json.dumps(event_filters))
        )
        try:
            while True:
                with _translated_errors():
                    event = await subscriber.get()
                if event is None:
                    return
                yield dict(event)
        finally:
            stream_task.cancel()
            with suppress(Exception, asyncio.CancelledError):  # its failure ends the subscription too
                await stream_task


def _strip_log_headers(log_stream: bytes) -> bytes:
    """Strips the eight-byte headers, whose last four bytes are a length, from an engine's log stream."""
    outputs, header_offset = [], 0
    while header_offset + 8 <= len(log_stream):
        chunk_end = header_offset + 8 + int.from_bytes(log_stream[header_offset + 4 : header_offset + 8], "big")
        outputs.append(log_stream[header_offset + 8 : chunk_end])
        header_offset = chunk_end
    return b"".join(outputs)
