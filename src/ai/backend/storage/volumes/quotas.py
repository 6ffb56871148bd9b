"""Accounts the usage of quota scopes, for volumes that do not enforce limits themselves.

The usage of a scope is the result of a walk over its folders plus the bytes published since; open uploads reserve their
whole size. Sessions write too, so the limit is soft: it is enforced where the proxy itself adds bytes. A refusal always
follows a recent walk. See docs/decisions/0083.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

import msgspec

from ai.backend.common.errors import BackendError, QuotaExceeded, QuotaScopeNotFound, StorageFull
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.plugin.volume import AbstractVolume, UploadState, VolumeCapability

log = logging.getLogger(__name__)
USAGE_FRESH_S = 5.0
"""The largest age in seconds of the measured usage by which an upload is refused."""
_NEARLY_FULL_BYTES = 1 << 22  # a file system may need more space than was written


@dataclass(slots=True)
class _ScopeAccount:
    used_bytes: int = 0
    file_count: int = 0
    grown_bytes: int = 0
    reserved_bytes: int | None = None
    scanned_at: float | None = None
    is_stale: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    refresh: asyncio.Task[None] | None = None


class ScopeState(msgspec.Struct, frozen=True):
    """Holds the usage and the limit of a quota scope in bytes, and its number of files.

    A limit of None is no limit. ``files`` is as of the last walk.
    """

    used: int
    files: int
    limit: int | None
    enforcement: str


class QuotaAccounting:
    """Tracks the used and reserved bytes of each quota scope, and refuses uploads that exceed the scope's limit.

    ``scan_interval_s`` is the largest age of a walk that admits an upload.
    """

    def __init__(self, *, scan_interval_s: float) -> None:
        self._interval_s = scan_interval_s
        self._accounts: dict[tuple[str, QuotaScopeId], _ScopeAccount] = {}

    async def describe(self, volume: AbstractVolume, scope: QuotaScopeId) -> ScopeState:
        """Returns usage and limit of a scope. Raises QuotaScopeNotFound."""
        limit = await volume.scope_limit(scope)
        if VolumeCapability.QUOTA in volume.capabilities:
            usage = await volume.scope_usage(scope)
            return ScopeState(usage.used_bytes, usage.file_count, limit, "hard")
        account = self._account(volume, scope)
        await self._scan(volume, scope, account, older_than_s=USAGE_FRESH_S)
        return ScopeState(account.used_bytes + account.grown_bytes, account.file_count, limit, "soft")

    async def reserve(self, volume: AbstractVolume, scope: QuotaScopeId, size: int) -> None:
        """Reserves ``size`` bytes until :meth:`end_reservation`.

        Raises QuotaExceeded if they do not fit. Where the volume enforces limits itself, this only refuses earlier.
        """
        account = self._account(volume, scope)
        try:
            limit = await volume.scope_limit(scope)
        except QuotaScopeNotFound:
            limit = None
        if limit is not None and VolumeCapability.QUOTA in volume.capabilities:
            used_bytes = (await volume.scope_usage(scope)).used_bytes
            if used_bytes + size > limit:
                raise QuotaExceeded(data={"limit_bytes": limit, "used_bytes": used_bytes, "wanted_bytes": size})
        elif limit is not None:
            await self._scan(volume, scope, account, older_than_s=None)
            if self._total_bytes(account) + size > limit:
                await self._scan(volume, scope, account, older_than_s=USAGE_FRESH_S)
            elif time.monotonic() - (account.scanned_at or 0.0) > self._interval_s:
                self._refresh(volume, scope, account)
            total_bytes = self._total_bytes(account)
            if total_bytes + size > limit:
                raise QuotaExceeded(data={"limit_bytes": limit, "used_bytes": total_bytes, "wanted_bytes": size})
        if account.reserved_bytes is not None:
            account.reserved_bytes += size

    async def error_of_full_volume(
        self, volume: AbstractVolume, scope: QuotaScopeId, error: StorageFull
    ) -> BackendError:
        """Returns QuotaExceeded if a scope's limit, which the volume enforces, has caused a StorageFull error.

        Otherwise returns the error itself.
        """
        if VolumeCapability.QUOTA not in volume.capabilities or (limit := await volume.scope_limit(scope)) is None:
            return error
        used_bytes = (await volume.scope_usage(scope)).used_bytes
        if limit - used_bytes > _NEARLY_FULL_BYTES:
            return error
        return QuotaExceeded(data={"limit_bytes": limit, "used_bytes": used_bytes})

    def end_reservation(
        self, volume: AbstractVolume, scope: QuotaScopeId, reserved_bytes: int, *, is_published: bool
    ) -> None:
        """Releases the bytes that were reserved for an upload, after it was published or dropped."""
        account = self._account(volume, scope)
        if account.reserved_bytes is not None:
            account.reserved_bytes = max(0, account.reserved_bytes - reserved_bytes)
        if is_published:
            account.grown_bytes += reserved_bytes

    def mark_outdated(self, volume: AbstractVolume, scope: QuotaScopeId) -> None:
        """Marks the usage of a scope as outdated after a removal."""
        self._account(volume, scope).is_stale = True

    def recount(self) -> None:
        """Marks the reservations of all scopes to be recomputed at their next use, after uploads have expired."""
        for account in self._accounts.values():
            account.reserved_bytes = None

    def _account(self, volume: AbstractVolume, scope: QuotaScopeId) -> _ScopeAccount:
        return self._accounts.setdefault((volume.name, scope), _ScopeAccount())

    @staticmethod
    def _total_bytes(account: _ScopeAccount) -> int:
        return account.used_bytes + account.grown_bytes + (account.reserved_bytes or 0)

    async def _scan(
        self, volume: AbstractVolume, scope: QuotaScopeId, account: _ScopeAccount, *, older_than_s: float | None
    ) -> None:
        """Measures the usage of a quota scope by walking over its files.

        Does nothing if the last walk is younger than ``older_than_s`` seconds; None accepts every age.
        """
        async with account.lock:
            if account.reserved_bytes is None:
                account.reserved_bytes = await self._open_upload_bytes(volume, scope)
            age_s = None if account.scanned_at is None else time.monotonic() - account.scanned_at
            if age_s is not None and (older_than_s is None or (age_s < older_than_s and not account.is_stale)):
                return
            grown_bytes_before, began_at = account.grown_bytes, time.monotonic()
            account.reserved_bytes = await self._open_upload_bytes(volume, scope)  # other processes end uploads too
            account.is_stale = False
            usage = await volume.scope_usage(scope)
            account.used_bytes, account.file_count = usage.used_bytes, usage.file_count
            account.grown_bytes -= grown_bytes_before
            account.scanned_at = began_at

    @staticmethod
    async def _open_upload_bytes(volume: AbstractVolume, scope: QuotaScopeId) -> int:
        uploads = await volume.uploads(scope)
        return sum(upload.size for upload in uploads if upload.state != UploadState.DONE)

    def _refresh(self, volume: AbstractVolume, scope: QuotaScopeId, account: _ScopeAccount) -> None:
        if account.refresh is None or account.refresh.done():
            account.refresh = asyncio.create_task(self._refresh_quietly(volume, scope, account))

    async def _refresh_quietly(self, volume: AbstractVolume, scope: QuotaScopeId, account: _ScopeAccount) -> None:
        try:
            await self._scan(volume, scope, account, older_than_s=USAGE_FRESH_S)
        except BackendError as e:
            log.warning("%s on %s cannot be measured: %s", scope, volume.name, e.message)

    async def stop(self) -> None:
        refresh_tasks = [account.refresh for account in self._accounts.values() if account.refresh is not None]
        for refresh_task in refresh_tasks:
            refresh_task.cancel()
        await asyncio.gather(*refresh_tasks, return_exceptions=True)
