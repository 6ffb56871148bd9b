"""Sessions: creation, reading, renaming, restart, destruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.common.ids import AccessKey, SessionId
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.model.query import Page, SessionQuery
from ai.backend.manager.model.session import (
    CreateReply,
    CreateSession,
    DependencyNode,
    DestroyReply,
    Kernel,
    Session,
    SessionMatch,
)


class SessionService:
    """Use cases on sessions. ``ref`` is a name, an id or an unambiguous prefix of an id.

    Another user's session is SessionNotFound unless the caller's role sees it (superadmin and monitor: all; admin: own
    domain). Every method takes ``owner_access_key`` as IdentityService.resolve_owner does.
    """

    async def create(self, caller: Caller, request: CreateSession, *, client_token: str | None = None) -> CreateReply:
        """Enqueue a session and, unless ``enqueue_only``, wait until it has started, failed or the wait ran out.

        Two calls with the same ``client_token`` (``X-BackendAI-Client-Token``) or the same name give one session;
        the later
        one gets ``created=False`` if ``reuse_if_exists`` and the image is the same.

        Raises:
            InvalidInput, InvalidName, InvalidQuantity: ``data`` maps the wire field to what is wrong.
            ImageNotFound: ``data.available`` lists what there is.
            UnsupportedResource: no agent ever reported a requested slot.
            InsufficientResource: no agent of the resource group, even if empty, could hold it; or a policy forbids it.
            SessionAlreadyExists, LimitExceeded, Forbidden, NotFound (group, domain, resource group).
        """
        raise NotImplementedError

    async def get(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Session:
        """Live sessions first; a final one only by its full id, or as the newest of that name when no live one has it.

        Raises:
            SessionNotFound, TooManySessionsMatched.
        """
        raise NotImplementedError

    async def get_by_id(self, caller: Caller, session_id: SessionId) -> Session:
        """The session with live statistics, whatever its status (GraphQL ``compute_session``)."""
        raise NotImplementedError

    async def search(self, caller: Caller, query: SessionQuery) -> Page[Session]:
        """What the caller may see: users their own, admins their domain, superadmins all. Live statistics are
        filled in.

        A plain user who names another access key gets Forbidden.
        """
        raise NotImplementedError

    async def match(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> list[SessionMatch]:
        """Live sessions whose name or id starts with ``ref``, at most 10; an exact name or id alone wins."""
        raise NotImplementedError

    async def kernels_of_agent(self, caller: Caller, agent_id: str, *, statuses: tuple[str, ...] = ()) -> list[Kernel]:
        """Superadmins only; others get an empty list."""
        raise NotImplementedError

    async def get_many(self, caller: Caller, ids: tuple[SessionId, ...]) -> Mapping[SessionId, Session]:
        """Those of ``ids`` that the caller may see (GraphQL ``dependencies``)."""
        raise NotImplementedError

    async def concurrency_used(self, access_keys: tuple[AccessKey, ...]) -> Mapping[AccessKey, int]:
        """How many live sessions each access key has."""
        raise NotImplementedError

    async def count_active(self) -> int:
        """Live sessions over the whole cluster (``/manager/status``)."""
        raise NotImplementedError

    async def rename(self, caller: Caller, ref: str, new_name: str, *, owner_access_key: str | None = None) -> Session:
        """Raises SessionAlreadyExists if a live session of the same owner has the name."""
        raise NotImplementedError

    async def restart(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> Session:
        """Restart all kernels in place and wait until they run again.

        Raises:
            Conflict: the session is not RUNNING.
        """
        raise NotImplementedError

    async def destroy(
        self,
        caller: Caller,
        ref: str,
        *,
        owner_access_key: str | None = None,
        forced: bool = False,
        recursive: bool = False,
    ) -> DestroyReply:
        """PENDING becomes CANCELLED at once, anything else TERMINATING; the end is awaited for a few seconds.

        ``recursive`` also ends every live session that depends on it. Repeating it is harmless.
        """
        raise NotImplementedError

    async def status_history(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> Mapping[str, str | None]:
        """Lower-cased status -> ISO time of the last entry; ``preparing`` and ``terminated`` are always there."""
        raise NotImplementedError

    async def dependency_graph(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> DependencyNode:
        raise NotImplementedError

    async def abusing_report(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> Mapping[str, Any]:
        """What agents reported about abuse by this session; empty when nothing."""
        raise NotImplementedError
