"""Sources of imports: each plans the files of a revision and then yields the bytes of each."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec
from yarl import URL

from ai.backend.common.errors import ArtifactRejected, RegistryUnavailable
from ai.backend.common.wire.artifacts import HubSource, Manifest, ReservoirSource
from ai.backend.infra.http.outbound import parse_url
from ai.backend.storage.artifacts.fetcher import Fetcher, raise_for
from ai.backend.storage.artifacts.hub import MAX_DIGEST, Hub
from ai.backend.storage.artifacts.model import MAX_RECORD, Plan, PlannedFile


class FileSource(Protocol):
    """Reads one revision from a registry. Calls raise the errors of :class:`Fetcher` and :class:`Hub`."""

    async def plan(self, attempt: int, begun: str | None) -> Plan:
        """Returns the files of the revision; an import that ``begun`` with that digest keeps it if the branch moves."""

    def fetch(self, plan: Plan, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        """Yields the bytes from ``offset`` on. Raises RangeIgnored if the source only sends whole files."""


class FromHub:
    """Reads a version of a model from a hub."""

    def __init__(self, fetcher: Fetcher, source: HubSource) -> None:
        self._source = source
        self._hub = Hub(fetcher, source.url, source.token)

    async def plan(self, attempt: int, begun: str | None) -> Plan:
        source = self._source
        if begun is not None and begun == source.digest:
            source = msgspec.structs.replace(source, version=begun)
        digest, files = await self._hub.plan(source)
        return Plan(attempt=attempt, digest=digest, origin=f"{self._source.url}/{self._source.name}", files=files)

    def fetch(self, plan: Plan, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        return self._hub.fetch(self._source.name, plan.digest, file, offset)


class FromReservoir:
    """Reads a revision from another installation; ``ticket`` may be renewed at any time."""

    def __init__(self, fetcher: Fetcher, source: ReservoirSource) -> None:
        self._fetcher = fetcher
        self.ticket = source.ticket

    def _ticket(self) -> URL:
        url = parse_url(self.ticket)
        if url.name != "manifest":
            raise ArtifactRejected("That is no ticket of a revision.")
        return url

    async def plan(self, attempt: int, begun: str | None) -> Plan:
        url = self._ticket()
        response = await self._fetcher.read(url, {}, limit=MAX_RECORD)
        raise_for(response.status, url.host)
        try:
            manifest = msgspec.json.decode(response.body, type=Manifest)
        except msgspec.MsgspecError:
            raise RegistryUnavailable(f"{url.host} answers something that is no manifest.") from None
        files = tuple(PlannedFile(path=f.path, size=f.size, sha256=f.sha256 or None) for f in manifest.files)
        origin = f"{url.origin()}/{manifest.revision_id}"
        return Plan(attempt=attempt, digest=manifest.digest[:MAX_DIGEST], origin=origin, files=files)

    def fetch(self, plan: Plan, file: PlannedFile, offset: int) -> AsyncGenerator[bytes, None]:
        ticket = self._ticket()
        url = ticket.with_name("file").with_query({**ticket.query, "path": file.path})
        return self._fetcher.file(url, {}, offset=offset, size=file.size)
