"""Elects one process of several by a Lease (API group coordination.k8s.io), as the cluster's own controllers do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from ai.backend.common.errors import BackendError, NotFound
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict
from ai.backend.node.kube_api.objects import Lease
from ai.backend.node.kube_api.resources import LEASES

log = logging.getLogger(__name__)
LEASE_S, RENEW_DEADLINE_S, RETRY_S = 15.0, 10.0, 2.0
Work = Callable[[int], Awaitable[None]]
"""Runs as the leader's work, with the number of the leader's term as argument."""


class Election:
    """Runs work in at most one of the processes that use the same Lease.

    The holder renews the Lease every ``retry_s``; it stops its work once it could not renew for ``renew_deadline_s``,
    before the others may take the Lease over after ``lease_s``. All durations are of the own monotonic clock: another
    process is late when its Lease was not seen to change for ``lease_s``, whatever times are written in it.
    With ``is_patient`` the holder goes on while it cannot reach the server, until it sees another holder: for work that
    must not stop with the API server, and that a lock elsewhere keeps from being done twice.
    The term is ``leaseTransitions``; it grows with every change of the holder, also of one process with itself.
    ``api`` serves nothing else, so that a renewal never waits behind other requests.
    """

    def __init__(
        self,
        api: KubeApi,
        name: str,
        namespace: str,
        identity: str,
        *,
        lease_s: float = LEASE_S,
        renew_deadline_s: float = RENEW_DEADLINE_S,
        retry_s: float = RETRY_S,
        is_patient: bool = False,
    ) -> None:
        if not retry_s < renew_deadline_s < lease_s:
            raise ValueError("retry, renewal and lease must be longer each than the one before")
        self._api = api
        self._name, self._namespace, self._identity = name, namespace, identity
        self._lease_s, self._renew_deadline_s, self._retry_s = lease_s, renew_deadline_s, retry_s
        self._is_patient = is_patient
        self._is_working = False
        self._seen: tuple[str, str, int] | None = None
        self._seen_at = 0.0
        self._renewed_at = float("-inf")
        self.holder = ""
        """The last observed holder of the Lease."""

    def is_leading(self) -> bool:
        """Returns True while this process holds the Lease and no other process can hold it.

        Ask before each step that must not be done twice.
        """
        return asyncio.get_running_loop().time() - self._renewed_at < self._renew_deadline_s

    async def run(self, work: Work) -> None:
        """Waits for the Lease, and runs ``work`` while this process holds the Lease. Repeats this until ``work`` ends
        by itself or this is cancelled. Raises what ``work`` raises. The Lease is given back in the end.
        """
        while True:
            term = await self._acquire()
            log.info("%s leads by the lease %s/%s, term %d", self._identity, self._namespace, self._name, term)
            task = asyncio.ensure_future(work(term))
            self._is_working = True
            try:
                await self._renew_until_done(task)
                if task.done():
                    return task.result()
                log.warning("%s no longer leads by the lease %s/%s", self._identity, self._namespace, self._name)
            finally:
                self._is_working = False
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self._release()

    async def _acquire(self) -> int:
        while True:
            try:
                term = await self._take_or_renew()
            except BackendError as e:
                log.warning("the lease %s/%s cannot be read: %s", self._namespace, self._name, e)
                term = None
            if term is not None:
                return term
            await asyncio.sleep(self._retry_s)

    async def _renew_until_done(self, task: asyncio.Future[Any]) -> None:
        """Renews the Lease until it is lost or the task is done."""
        while True:
            await asyncio.wait({task}, timeout=self._retry_s)
            if task.done():
                return
            try:
                left_s = self._renewed_at + self._renew_deadline_s - asyncio.get_running_loop().time()
                async with asyncio.timeout(self._renew_deadline_s if self._is_patient else max(0.0, left_s)):
                    if await self._take_or_renew() is None:
                        return
            except (BackendError, TimeoutError) as e:
                log.warning("the lease %s/%s cannot be renewed: %s", self._namespace, self._name, e)
            if not self.is_leading() and not self._is_patient:
                return

    async def _take_or_renew(self) -> int | None:
        """Takes or renews the Lease; returns the term, or None while another process holds it."""
        now = asyncio.get_running_loop().time()
        lease = await self._api.find(LEASES, self._name, self._namespace)
        spec = lease.spec if lease is not None else None
        if spec is not None and spec.holder_identity not in ("", self._identity):
            holder_state = (spec.holder_identity, spec.renew_time, spec.lease_transitions)
            if holder_state != self._seen:
                self._seen, self._seen_at, self.holder = holder_state, now, spec.holder_identity
            if now - self._seen_at < max(self._lease_s, spec.lease_duration_seconds):
                return None
        is_own = spec is not None and spec.holder_identity == self._identity
        is_renewal = is_own and (self.is_leading() or self._is_working)
        term = (spec.lease_transitions if spec is not None else 0) + (0 if is_renewal else 1)
        try:
            await self._write_lease(lease, term, is_renewal=is_renewal)
        except (ObjectConflict, NotFound):
            if is_renewal:  # somebody has annotated it meanwhile, or taken it: the next attempt tells
                raise
            return None
        self._renewed_at, self.holder = now, self._identity
        return term

    async def _write_lease(self, lease: Lease | None, term: int, *, is_renewal: bool) -> None:
        written_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._lease_s) or 1,
            "acquireTime": lease.spec.acquire_time if is_renewal and lease is not None else written_at,
            "renewTime": written_at,
            "leaseTransitions": term,
        }
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if lease is None:
            await self._api.create(LEASES, {"metadata": metadata, "spec": spec}, self._namespace)
            return
        precondition = {"resourceVersion": lease.metadata.resource_version, "uid": lease.metadata.uid}
        await self._api.patch(LEASES, self._name, {"metadata": precondition, "spec": spec}, self._namespace)

    async def _release(self) -> None:
        """Gives the Lease back, so that the next holder need not wait for its end."""
        is_held, self._renewed_at = self.is_leading(), float("-inf")
        if not is_held:
            return
        try:
            async with asyncio.timeout(self._retry_s):
                lease = await self._api.get(LEASES, self._name, self._namespace)
                if lease.spec.holder_identity == self._identity:
                    precondition = {"resourceVersion": lease.metadata.resource_version}
                    body = {"metadata": precondition, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
                    await self._api.patch(LEASES, self._name, body, self._namespace)
        except (BackendError, TimeoutError) as e:
            log.info("the lease %s/%s is left to end by itself: %s", self._namespace, self._name, e)
