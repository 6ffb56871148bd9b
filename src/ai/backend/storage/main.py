"""Composition, HTTP servers and commands of the storage proxy daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

import click
from aiohttp import web

from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.common.volume_paths import VFolderId
from ai.backend.infra.http.health import HealthApi
from ai.backend.infra.http.routes import endpoints_of
from ai.backend.infra.http.secret import SecretAuthenticator
from ai.backend.infra.http.server import HttpOptions, HttpServer, make_runner, serve_on, tls_of
from ai.backend.infra.process.daemon import config_option, level_reload, log_level_option, on_hang_up, run_daemon
from ai.backend.infra.process.pid_file import PidFile
from ai.backend.infra.process.workers import ProcessSupervisor, wait_for_first_process
from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
from ai.backend.infra.settings.check import config as config_group
from ai.backend.infra.telemetry import Metrics, configure_logging_by_settings, start_monitors, start_telemetry
from ai.backend.plugin.crash_points import crash_point
from ai.backend.storage.artifacts.api import ArtifactApi, ArtifactClientApi
from ai.backend.storage.artifacts.archive import Archive, Storages
from ai.backend.storage.artifacts.fetcher import Fetcher
from ai.backend.storage.artifacts.imports import Imports
from ai.backend.storage.artifacts.model import Limits
from ai.backend.storage.config.settings import ClientApiSettings, ManagerApiSettings, StorageSettings
from ai.backend.storage.folders.api import FileApi, FolderApi
from ai.backend.storage.folders.service import Folders
from ai.backend.storage.tasks import Tasks
from ai.backend.storage.transfers.api import ClientApi, allow_all_origins
from ai.backend.storage.transfers.tokens import Tokens
from ai.backend.storage.transfers.uploads import Uploads
from ai.backend.storage.volumes.api import VolumeApi
from ai.backend.storage.volumes.quotas import QuotaAccounting
from ai.backend.storage.volumes.registry import Volumes

log = logging.getLogger(__name__)
SECRET_HEADER = "X-BackendAI-Storage-Auth-Token"
MIN_SECRET_LENGTH = 32
"""Characters: HMAC-SHA256 requires a key as long as its digest (RFC 7518, 3.2)."""
_WORKER_CODE = "from ai.backend.storage.main import main; main()"
Address = socket.socket | tuple[str, int]


class StorageProxy:
    """A storage proxy with its manager-facing and client-facing API.

    ``is_worker``: serves clients only, beside the first process of the proxy. Raises InvalidInput: a volume or
    certificate is invalid, or a secret is too short.
    """

    def __init__(self, settings: StorageSettings, *, is_worker: bool = False) -> None:
        self.settings = settings
        self._is_worker = is_worker
        proxy_settings = settings.storage_proxy
        token_secret, manager_secret = (
            proxy_settings.secret.get_secret_value(),
            settings.api.manager.secret.get_secret_value(),
        )
        for setting_name, secret_value in (
            ("storage-proxy.secret", token_secret),
            ("api.manager.secret", manager_secret),
        ):
            if len(secret_value) < MIN_SECRET_LENGTH:
                raise InvalidInput(f"{setting_name} must have at least {MIN_SECRET_LENGTH} characters.")
        self.metrics = metrics = Metrics("storage-proxy")
        self.volumes = Volumes(settings.volume, owner=proxy_settings.owner, waypoint=crash_point)
        self._quota = QuotaAccounting(scan_interval_s=proxy_settings.quota_scan_interval)
        self._tasks = Tasks()
        self._uploads = Uploads(self.volumes, self._quota, max_size=proxy_settings.max_upload_size)
        self._folders = Folders(self.volumes, self._quota, self._tasks)
        self._tokens = tokens = Tokens(token_secret, proxy_settings.session_expire)
        self._client = ClientApi(self.volumes, self._uploads, tokens, upload_expiry_s=proxy_settings.upload_expiry)
        artifact_settings = settings.artifacts
        self._storages = Storages(settings, self.volumes)
        self._fetcher = Fetcher(artifact_settings.allowed_hosts)
        self._archive = Archive(self._storages)
        self._imports = Imports(
            storages=self._storages,
            archive=self._archive,
            fetcher=self._fetcher,
            limits=Limits(
                max_files=artifact_settings.max_files,
                max_file_bytes=artifact_settings.max_file_size,
                max_bytes=artifact_settings.max_size,
            ),
            parallel=artifact_settings.parallel,
        )
        manager_apis = (
            VolumeApi(self.volumes, self._quota, proxy_settings.node_id),
            FolderApi(self._folders),
            FileApi(self._folders, self._uploads, tokens, proxy_settings.scandir_limit),
            ArtifactApi(self._imports, self._archive, tokens),
            HealthApi(metrics, self._readiness, self._gauges),
        )
        endpoints = [endpoint for api in manager_apis for endpoint in endpoints_of(api)]
        authenticator = SecretAuthenticator(manager_secret, SECRET_HEADER)
        manager_server = HttpServer(endpoints, metrics=metrics, authenticator=authenticator)
        self._manager_runner = make_runner(manager_server.application())
        client_endpoints = [*endpoints_of(self._client), *endpoints_of(ArtifactClientApi(self._archive, tokens))]
        client_options = HttpOptions(connections_per_address=settings.api.client.connections_per_address)
        client_app = HttpServer(client_endpoints, metrics=metrics, options=client_options).application()
        client_app.on_response_prepare.append(allow_all_origins)
        self._client_runner = make_runner(client_app, decodes_bodies=False)
        self._loops: list[asyncio.Task[None]] = []

    async def start(self, *, client: Address | None = None, manager: Address | None = None) -> None:
        """Serves both APIs and resumes interrupted clones; a worker only serves the API for clients.

        ``client``, ``manager``: addresses that replace those of the settings.
        """
        api, proxy_settings = self.settings.api, self.settings.storage_proxy
        if proxy_settings.user not in (None, os.geteuid()) and os.geteuid() != 0:
            log.warning(
                "new files in folders belong to uid %d, not %d: only root can change owners",
                os.geteuid(),
                proxy_settings.user,
            )
        client_tls = _tls_context(api.client, self.metrics, prefix="client_")
        manager_tls = _tls_context(api.manager, self.metrics)
        await self.volumes.start()
        await self._storages.start()
        address = client or (api.client.service_addr.host, api.client.service_addr.port)
        self.client_url = await _serve(
            self._client_runner, address, client_tls, shares_port=proxy_settings.num_proc > 1
        )
        if self._is_worker:
            return
        await self._folders.resume()
        self._loops.append(asyncio.create_task(self._uploads.expire_periodically(after_s=proxy_settings.upload_expiry)))
        self._tokens.client_url = (api.client.public_url or self.client_url).rstrip("/")
        address = manager or (api.manager.service_addr.host, api.manager.service_addr.port)
        self.manager_url = await _serve(self._manager_runner, address, manager_tls)

    async def _readiness(self) -> Mapping[str, bool]:
        return {volume.name: await volume.check() is None for volume in self.volumes}

    async def _gauges(self) -> Mapping[str, float]:
        health_by_volume = await self._readiness()
        return {
            "volumes": len(health_by_volume),
            "volumes_unhealthy": sum(not is_well for is_well in health_by_volume.values()),
        }

    async def stop(self) -> None:
        """Stops serving; the next process resumes unfinished work. May be called after a failed start."""
        await self._manager_runner.cleanup()
        await self._client_runner.cleanup()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for stop_component in (
            self._imports.stop,
            self._archive.stop,
            self._fetcher.stop,
            self._storages.stop,
            self._tasks.stop,
        ):
            await stop_component()
        await self._quota.stop()
        self._uploads.stop()
        self._client.stop()
        await self.volumes.stop()


def _tls_context(
    api: ClientApiSettings | ManagerApiSettings, metrics: Metrics, *, prefix: str = ""
) -> ssl.SSLContext | None:
    if api.ssl_cert is None or api.ssl_privkey is None or not api.ssl_enabled:
        return None
    return tls_of(api.ssl_cert, api.ssl_privkey, metrics=metrics, prefix=prefix)


async def _serve(
    runner: web.AppRunner, address: Address, tls: ssl.SSLContext | None, *, shares_port: bool = False
) -> str:
    try:
        host, port = await serve_on(runner, address, tls=tls, shares_port=shares_port)
    except OSError as e:
        raise InvalidInput(f"Cannot listen on {address}: {e.strerror}.") from None
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


async def serve(settings: StorageSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info) -> None:
    """Runs a storage proxy until ``stop`` is set. Raises InvalidInput: a volume or an address cannot be used."""
    async with _running_proxy(StorageProxy(settings)) as proxy:
        volumes = ", ".join(volume.name for volume in proxy.volumes) or "no volumes"
        ready(f"the storage proxy serves {volumes}: managers at {proxy.manager_url}, clients at {proxy.client_url}")
        await stop.wait()


@asynccontextmanager
async def _running_proxy(proxy: StorageProxy) -> AsyncIterator[StorageProxy]:
    try:
        await proxy.start()
        yield proxy
    finally:
        await proxy.stop()


@click.group()
def main() -> None:
    """The storage proxy daemon."""


main.add_command(config_group)


@main.command("start-server")
@config_option("storage-proxy")
@log_level_option
@click.option("--worker", type=int, default=0, hidden=True, help="The number of a process that the first one starts.")
def start_server(config: Path | None, log_level: str | None, worker: int) -> None:
    """Serve folders to managers and clients."""
    settings = _load_settings(config)
    try:
        effective_level = log_level or settings.debug.log_level
        configure_logging_by_settings("storage-proxy", settings.logging, level=effective_level, process_number=worker)
        warn_of_keys_without_effect(settings)
        start_telemetry("storage-proxy", settings.otel)
        start_monitors("storage-proxy", settings.monitors, settings, process_number=worker)
    except BackendError as e:
        raise click.ClickException(str(e)) from e
    arguments = [*(("-f", str(config)) if config else ()), *(("--log-level", log_level) if log_level else ())]
    command = [sys.executable, "-c", _WORKER_CODE, "start-server", *arguments, "--worker"]
    run_daemon(
        lambda stop: (
            _run_worker(settings)
            if worker
            else _serve_with_workers(settings, stop, lambda number: [*command, str(number)])
        ),
        debug=settings.debug.asyncio or None,
        loop_factory=_loop_factory(settings.storage_proxy.event_loop),
        reload=level_reload(lambda: _load_settings(config).logging, level=effective_level),
    )


def _load_settings(config: Path | None) -> StorageSettings:
    try:
        return load_settings(StorageSettings, name="storage-proxy", path=config, env_prefix="BACKEND_STORAGE_")
    except BackendError as e:
        raise click.ClickException(str(e)) from e


@main.command("migrate-volume")
@config_option("storage-proxy")
@click.argument("name")
@click.argument("folders", type=click.File())
def migrate_volume(config: Path | None, name: str, folders: TextIO) -> None:
    """Move the folders of an older volume into their quota scopes.

    NAME is the volume's, as in the settings; no storage proxy may use it meanwhile. FOLDERS is a file with one folder a
    line, as `user:<uuid>/<folder id>` or `project:<uuid>/<folder id>`.
    """
    settings = _load_settings(config)
    try:
        folder_ids = [VFolderId.parse(line.strip()) for line in folders if line.strip()]
        unowned_ids = asyncio.run(_migrate_folders(settings, name, folder_ids))
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e
    if unowned_ids:
        shown_ids = ", ".join(unowned_ids[:5])
        raise click.ClickException(f"{len(unowned_ids)} folders are nobody's, so the layout stays old: {shown_ids}")
    click.echo(f"{name} has today's layout.")


async def _migrate_folders(settings: StorageSettings, name: str, folders: Sequence[VFolderId]) -> Sequence[str]:
    volumes = Volumes(settings.volume, owner=settings.storage_proxy.owner, waypoint=crash_point)
    volume = volumes.get(name)
    try:
        return await volume.migrate(folders)
    finally:
        await volume.stop()


async def _serve_with_workers(
    settings: StorageSettings, stop: asyncio.Event, worker_command: Callable[[int], Sequence[str]]
) -> None:
    proxy_settings = settings.storage_proxy
    with PidFile(proxy_settings.pid_file):
        workers = ProcessSupervisor(
            {f"worker {number}": worker_command(number) for number in range(1, proxy_settings.num_proc)}
        )
        workers.start()
        on_hang_up.append(workers.hang_up)
        try:
            await serve(settings, stop)
        finally:
            await workers.stop()


async def _run_worker(settings: StorageSettings) -> None:
    """Runs a worker until the first process ends; ignores signals of the terminal."""
    async with _running_proxy(StorageProxy(settings, is_worker=True)):
        await wait_for_first_process()


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name == "uvloop":
        try:
            import uvloop
        except ImportError:
            log.warning("event-loop is uvloop, which is not installed; asyncio's own serves")
        else:
            uvloop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
            return uvloop_factory
    return None
