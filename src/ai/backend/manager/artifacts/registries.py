"""Adds, changes and scans registries of artifacts, and selects the storages of imports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from ai.backend.common.artifacts import ArtifactType, RegistryType
from ai.backend.common.errors import InvalidInput, InvalidName, NotFound, Unavailable
from ai.backend.common.folders import parse_host
from ai.backend.common.ids import RegistryId, TaskId
from ai.backend.common.structs import replace
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Pages, Reservoirs, ScanRequest
from ai.backend.manager.artifacts.model import (
    EVERYONE,
    MAX_NAME,
    ArtifactRegistry,
    ArtifactSettings,
    ArtifactStorage,
    Stages,
)
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.tasks.service import TaskProgress, TaskService
from ai.backend.plugin.crash_points import crash_point

STAGES = ("download", "verify", "archive")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_CREDENTIAL_NAMES: Mapping[RegistryType, tuple[frozenset[str], frozenset[str]]] = {
    RegistryType.HUGGINGFACE: (frozenset(), frozenset({"token"})),
    RegistryType.RESERVOIR: (frozenset({"access_key", "secret_key"}),) * 2,
    RegistryType.LOCAL: (frozenset(), frozenset()),
}
"""The required and the allowed names of credentials, by type of registry."""


def check_url(kind: RegistryType, url: str) -> str:
    """Returns the checked http(s) URL of a registry, without query and fragment, or "" for a local registry. A URL with
    credentials is refused. Raises InvalidInput.
    """
    if kind is RegistryType.LOCAL:
        if url:
            raise InvalidInput("A local registry has no URL.", data={"url": "not for type local"})
        return ""
    try:
        url_parts = urlsplit(url)
        is_valid = url_parts.scheme in ("http", "https") and url_parts.hostname and url_parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url or len(url) > 2048 or set(url) & {"@", "?", "#", "\\"}:
        raise InvalidInput(
            "The URL of a registry is http://HOST[:PORT][/PATH] or https://..., without credentials.",
            data={"url": "malformed"},
        )
    return url.rstrip("/")


def check_credentials(kind: RegistryType, credentials: Mapping[str, str]) -> dict[str, str]:
    """Returns the checked credentials of a registry, without empty ones. Raises InvalidInput, whose message never has
    values.
    """
    required_names, allowed_names = _CREDENTIAL_NAMES[kind]
    filled_credentials = {name: value for name, value in credentials.items() if value}
    problems = dict.fromkeys(required_names - filled_credentials.keys(), "required")
    problems |= dict.fromkeys(credentials.keys() - allowed_names, f"unknown for {kind.value}")
    problems |= {
        name: "malformed"
        for name, value in filled_credentials.items()
        if not value.isprintable() or not value.isascii()
    }
    if problems:
        details = ", ".join(f"{name}: {problem}" for name, problem in sorted(problems.items()))
        raise InvalidInput(
            f"These credentials do not suit a registry of type {kind.value} ({details}).",
            data={f"credentials.{name}": problem for name, problem in problems.items()},
        )
    return filled_credentials


def check_viewers(viewers: Sequence[str]) -> None:
    """Raises InvalidInput unless each viewer is ``everyone``, ``domain:NAME``, ``group:NAME`` or ``user:EMAIL``."""
    for viewer in viewers:
        kind, _, name = viewer.partition(":")
        if viewer != EVERYONE and not (kind in ("domain", "group", "user") and name):
            raise InvalidInput(
                f"{viewer[:64]!r} is no viewer: give {EVERYONE}, domain:NAME, group:NAME or user:EMAIL.",
                data={"viewers": "malformed"},
            )


def check_storages(storages: Mapping[str, str]) -> dict[str, str]:
    """Returns the checked storages of a registry, by stage. Raises InvalidInput."""
    for stage, host in storages.items():
        if stage not in STAGES:
            raise InvalidInput(
                f"There is no stage {stage[:32]!r} that a storage could be set for; there are {', '.join(STAGES)}.",
                data={"storages": "unknown stage"},
            )
        parse_host(host)
    return dict(storages)


def check_user_imports(kind: RegistryType, limit: int | None) -> int | None:
    """Returns the size limit of revisions that users may import, or None if ``limit`` is 0. Raises InvalidInput for a
    local registry, which has nothing to import.
    """
    if limit and kind is RegistryType.LOCAL:
        raise InvalidInput("Nothing is imported from a local registry.", data={"user_import_bytes": "for type local"})
    return limit or None


class RegistryService(msgspec.Struct, frozen=True, kw_only=True):
    """Lists, adds, changes and removes registries. ``ref`` is a name or an id."""

    store: ArtifactStore
    gateway: ArtifactGateway
    settings: ArtifactSettings
    clock: Clock
    id_generator: IdGenerator

    async def list(self, caller: Caller) -> Sequence[ArtifactRegistry]:
        require(caller, Operation.SEE_ALL_ARTIFACTS)
        return await self.store.registries()

    async def find(self, ref: str) -> ArtifactRegistry:
        """Returns the registry with the given name or id. Raises NotFound."""
        for registry in await self.store.registries():
            if ref in (registry.name, str(registry.id), registry.id.hex):
                return registry
        raise NotFound(f"There is no artifact registry {ref[:64]!r}.", data={"registry": "unknown"})

    async def get(self, caller: Caller, ref: str) -> ArtifactRegistry:
        require(caller, Operation.SEE_ALL_ARTIFACTS)
        return await self.find(ref)

    async def add(
        self,
        caller: Caller,
        *,
        name: str,
        type: RegistryType,  # noqa: A002  # as the field of the request
        url: str,
        credentials: Mapping[str, str],
        storages: Mapping[str, str],
        viewers: Sequence[str] = (EVERYONE,),
        user_import_bytes: int | None = None,
    ) -> ArtifactRegistry:
        """Adds a registry. Raises InvalidName, InvalidInput, Conflict (name taken) or NotFound (storage)."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        if not _NAME_PATTERN.fullmatch(name):
            raise InvalidName(
                "A registry's name is 1 to 64 ASCII letters, digits and . _ - with a letter or digit at either end.",
                data={"name": "malformed"},
            )
        now = self.clock.now()
        registry = ArtifactRegistry(
            id=RegistryId(self.id_generator.uuid()),
            name=name,
            type=type,
            url=check_url(type, url),
            credentials=check_credentials(type, credentials),
            storages=check_storages(storages),
            viewers=await self.resolve_viewers(viewers),
            user_import_bytes=check_user_imports(type, user_import_bytes),
            created_at=now,
            modified_at=now,
        )
        if storages:
            await self.stages(registry)
        await self.store.add_registry(registry)
        return registry

    async def change(
        self,
        caller: Caller,
        ref: str,
        *,
        url: str | None = None,
        credentials: Mapping[str, str] | None = None,
        storages: Mapping[str, str] | None = None,
        viewers: Sequence[str] | None = None,
        user_import_bytes: int | None = None,
    ) -> ArtifactRegistry:
        """Changes the given values of a registry; a value of None is not changed.

        ``user_import_bytes`` 0 forbids imports by users. Running imports keep their storages.
        """
        require(caller, Operation.CHANGE_ARTIFACTS)
        registry = await self.find(ref)
        values: dict[str, object] = {}
        if url is not None:
            values["url"] = check_url(registry.type, url)
        if credentials is not None:
            values["credentials"] = check_credentials(registry.type, credentials)
        if storages is not None:
            values["storages"] = check_storages(storages)
        if viewers is not None:
            values["viewers"] = await self.resolve_viewers(viewers)
        if user_import_bytes is not None:
            values["user_import_bytes"] = check_user_imports(registry.type, user_import_bytes)
        if values:
            await self.store.change_registry(registry.id, modified_at=self.clock.now(), **values)
        return await self.find(str(registry.id))

    async def resolve_viewers(self, viewers: Sequence[str]) -> tuple[str, ...]:
        """Returns the viewers with names and addresses replaced by ids. Raises InvalidInput, NotFound, Conflict."""
        check_viewers(viewers)
        return await self.store.viewer_ids(viewers)

    async def remove(self, caller: Caller, ref: str) -> None:
        """Removes a registry with its artifacts. Raises Conflict while files of them are stored."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        await self.store.remove_registry((await self.find(ref)).id)

    async def storages(self, caller: Caller) -> Sequence[ArtifactStorage]:
        """Returns the storages that can be used by the stages of imports."""
        require(caller, Operation.SEE_ALL_ARTIFACTS)
        return [storage for _, storage in sorted((await self.gateway.storages()).items())]

    async def stages(self, registry: ArtifactRegistry) -> Stages:
        """Returns the storage of each stage of an import from a registry. A stage takes the storage of the registry,
        or the one in the manager's settings. If no stage has a storage, the first storage proxy that answers is used.

        Raises:
            NotFound: there is no such storage, or none at all.
            InvalidInput: the stages are on different storage proxies.
            Unavailable: the proxy of a storage does not answer.
        """
        defaults = {stage: getattr(self.settings, f"{stage}_storage") for stage in STAGES}
        host_of_stage = {stage: registry.storages.get(stage) or defaults[stage] for stage in STAGES}
        chosen_hosts = {stage: host for stage, host in host_of_stage.items() if host}
        storages = await self.gateway.storages()
        answering_proxies = list(dict.fromkeys(host.partition(":")[0] for host in storages))
        for stage, host in chosen_hosts.items():
            if host not in storages:
                if host.partition(":")[0] not in answering_proxies:
                    raise Unavailable(f"The storage proxy of {host[:64]!r} does not answer.")
                raise NotFound(
                    f"There is no storage {host[:64]!r} for artifacts.", data={f"storages.{stage}": "unknown"}
                )
        proxies = sorted({host.partition(":")[0] for host in chosen_hosts.values()}) or answering_proxies[:1]
        if not proxies:
            raise Unavailable("No storage proxy with room for artifacts answers.", data={"storages": "none"})
        if len(proxies) > 1:
            raise InvalidInput(
                "All stages of an import are on one storage proxy.", data={"storages": f"on {' and '.join(proxies)}"}
            )
        storage_names = {stage: host.partition(":")[2] for stage, host in chosen_hosts.items()}
        return Stages(proxy=proxies[0], check=self.settings.verify, **storage_names)


_ARTIFACTS_PER_WRITE = 100
"""The number of artifacts per transaction; small, so that other writers need not wait."""


def _is_storable(name: str) -> bool:
    return 1 <= len(name) <= MAX_NAME and name.isprintable()


class ScanService(msgspec.Struct, frozen=True, kw_only=True):
    """Scans registries in background tasks."""

    store: ArtifactStore
    gateway: ArtifactGateway
    reservoirs: Reservoirs
    registries: RegistryService
    tasks: TaskService
    clock: Clock
    id_generator: IdGenerator

    async def scan(self, caller: Caller, ref: str, request: ScanRequest, *, delegate_to: str | None = None) -> TaskId:
        """Starts a background task that scans a registry.

        ``delegate_to``: a registry of the other installation, which scans it first (spec 03-17, "Delegate Scan").
        Raises InvalidInput: a hub cannot scan for us.
        """
        require(caller, Operation.CHANGE_ARTIFACTS)
        registry = await self.registries.find(ref)
        if delegate_to is not None and registry.type is not RegistryType.RESERVOIR:
            raise InvalidInput(
                f"Only another installation can scan for us, and {registry.name!r} is of type {registry.type.value}.",
                data={"registry": "no reservoir"},
            )
        if registry.type is RegistryType.LOCAL:
            raise InvalidInput(f"{registry.name!r} has what was uploaded; there is nothing to scan.")
        if registry.type is RegistryType.HUGGINGFACE:
            await self.registries.stages(registry)  # fail now rather than in the background

        async def run_scan(progress: TaskProgress) -> str:
            if delegate_to is not None:

                async def report_progress(done: float, total: float) -> None:
                    await progress.update(done, total, f"{registry.name} scans {delegate_to}")

                await self.reservoirs.delegate_scan(registry, delegate_to, request, report_progress)
            return await self.record_scan(registry, request, progress)

        return await self.tasks.start(caller, f"scan the artifact registry {registry.name}", run_scan)

    async def _scan_pages(self, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        if registry.type is RegistryType.RESERVOIR:
            source = self.reservoirs.scan(registry, request)
        else:
            proxy = (await self.registries.stages(registry)).proxy
            source = self.gateway.scan(proxy, registry, request)
        async for page in source:
            yield page

    async def record_scan(self, registry: ArtifactRegistry, request: ScanRequest, progress: TaskProgress) -> str:
        """Scans a registry, stores the artifacts that it has, and returns a sentence with their numbers."""
        scanned_keys: set[tuple[ArtifactType, str, str | None]] = set()
        new_artifacts = new_revisions = 0
        async for batch in self._scan_pages(registry, request):
            page = [
                replace(
                    artifact, revisions=[revision for revision in artifact.revisions if _is_storable(revision.version)]
                )
                for artifact in batch
                if _is_storable(artifact.name)
            ]
            for chunk_start in range(0, len(page), _ARTIFACTS_PER_WRITE):
                chunk = page[chunk_start : chunk_start + _ARTIFACTS_PER_WRITE]
                now, new_id = self.clock.now(), self.id_generator.uuid
                artifact_count, revision_count = await self.store.record(registry.id, chunk, at=now, new_id=new_id)
                crash_point("after-artifact-scan-page")
                new_artifacts, new_revisions = new_artifacts + artifact_count, new_revisions + revision_count
            # Artifacts of a hub come twice, listed and then in detail, and count once.
            scanned_keys |= {
                (artifact.type, artifact.name, version)
                for artifact in page
                for version in (None, *(revision.version for revision in artifact.revisions))
            }
            artifact_total = sum(version is None for _, _, version in scanned_keys)
            await progress.update(artifact_total, 0, f"scanning {registry.name}")
        artifact_total = sum(version is None for _, _, version in scanned_keys)
        return (
            f"{registry.name} has {artifact_total} artifacts with {len(scanned_keys) - artifact_total} revisions; "
            f"{new_artifacts} artifacts and {new_revisions} revisions are new"
        )
