"""Implements the use cases of arrays: creation, reading, cancelling, and repetition of failed elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, SessionNotFound, StaleVersion
from ai.backend.common.names import check_session_name
from ai.backend.common.states import KernelEventReason, SessionType
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.events import SessionDestroyRequested
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.arrays import model
from ai.backend.manager.arrays.store import ArrayStore
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.model import CreateSession, Session
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.transitions import advance, enqueued_event, with_largest_amounts
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.topics import ARRAY, OUTBOX, SCHEDULE

_CHANGES_PER_COMMIT = 200
"""The number of elements that are ended in one transaction."""
_MAX_TRIES = 20


@dataclass(eq=False, repr=False, kw_only=True)
class ArrayService:
    """Creates, reads, cancels and repeats arrays on behalf of callers. ``ref`` is the id of an array, or the name of
    the newest one; another user's array is SessionNotFound unless the caller's role sees it. ``owner_access_key`` as in
    IdentityService.resolve_owner.
    """

    store: ArrayStore
    sessions: SessionService
    factory: SessionFactory
    writer: SessionWriter
    identity: IdentityService
    bus: Bus
    clock: Clock
    id_generator: IdGenerator
    settings: SessionSettings

    async def create(
        self, caller: Caller, request: CreateSession, indices_text: str, *, call_id: UUID | None = None
    ) -> tuple[model.SessionArray, bool]:
        """Enqueues a batch session for each index, all or none. Returns the array, and False if the call was
        repeated.

        ``call_id`` becomes the id of the array. Limits of the owner hold for each element. Raises InvalidInput,
        LimitExceeded, SessionAlreadyExists, and as SessionService.create.
        """
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        array_id = call_id or self.id_generator.uuid()
        existing_page = await self.store.arrays(model.ArrayQuery(array_id=array_id, limit=1))
        if existing_page.items:
            return existing_page.items[0], False
        indices, max_parallel = model.parse_indices(indices_text, limit=self.settings.max_array_size)
        if request.type is not SessionType.BATCH:
            raise InvalidInput("the elements of an array are batch sessions", data={"session.type": "not batch"})
        if max_parallel is not None and request.starts_at is not None:
            message = "an array with a limit of elements at a time starts at once"
            raise InvalidInput(message, data={"session.startsAt": "not with %"})
        name = request.name or f"array-{array_id.hex[:10]}"
        check_session_name(f"{name}-{max(indices)}")
        last_element, limits = await self.factory.build(caller, owner, replace(request, name=f"{name}-{max(indices)}"))
        await self.sessions.check_hooks(owner, last_element)
        session_template = replace(
            last_element,
            environ={**last_element.environ, **model.array_variables(array_id, name, indices)},
            array_id=array_id,
            array_name=name,
            array_parallel=max_parallel,
        )
        sessions = [model.new_element(session_template, index, self.id_generator) for index in indices]
        await self._insert(_hold_elements(sessions, max_parallel or len(sessions)), limits=limits)
        created_page = await self.store.arrays(model.ArrayQuery(array_id=array_id, limit=1))
        return created_page.items[0], True

    async def search(self, caller: Caller, query: model.ArrayQuery) -> Page[model.SessionArray]:
        """Returns the arrays that the caller's role may see. Users see their own arrays, admins those of their domain,
        superadmins all.
        """
        scope = scope_of(caller, Operation.SEE_SESSIONS)
        if scope is Scope.DOMAIN:
            query = replace(query, domain_name=caller.domain_name)
        elif scope is not Scope.ALL:
            if query.access_key is not None:
                await self.identity.resolve_owner(caller, query.access_key)
            query = replace(query, access_key=query.access_key or caller.access_key)
        return await self.store.arrays(query)

    async def get(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> model.SessionArray:
        """Returns an array. Raises SessionNotFound."""
        return await self._find_array(caller, ref, owner_access_key, Operation.SEE_SESSIONS)

    async def cancel(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None, forced: bool = False
    ) -> model.SessionArray:
        """Requests the end of all live elements of an array, without waiting, and returns the array. Repeating it is
        harmless.
        """
        array = await self._find_array(caller, ref, owner_access_key, Operation.CHANGE_SESSIONS)
        reason = KernelEventReason.FORCE_TERMINATED if forced else KernelEventReason.USER_REQUESTED
        event = SessionDestroyRequested(reason=reason, forced=forced, stimulus_id=caller.stimulus_id)
        for _ in range(_MAX_TRIES):
            # From the last one, since held elements are released from the first one when others end.
            elements = reversed(await self.store.elements(array.id))
            element_changes = [
                advance(session, event, now=self.clock.now()) for session in elements if not session.status.is_final
            ]
            try:
                for changes in _change_batches(
                    [change for change in element_changes if change is not None and change.is_stored]
                ):
                    await self.writer.commit(changes, point="commit-destroy")
            except StaleVersion:
                continue  # an element was changed meanwhile
            return await self.get(caller, str(array.id), owner_access_key=owner_access_key)
        raise StaleVersion(f"array {array.id} changes too fast")

    async def retry(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> tuple[model.SessionArray, int]:
        """Enqueues new sessions for the elements that have ended without success, under the same names. Returns the
        array and the number of these elements. Raises Conflict if there are none, and as :meth:`create`, also for what
        the owner may not use any more.
        """
        array = await self._find_array(caller, ref, owner_access_key, Operation.CHANGE_SESSIONS)
        owner = await self.identity.resolve_owner(caller, array.access_key)
        elements = await self.store.elements(array.id)
        failed_elements = [session for session in elements if model.has_failed(session)]
        if not failed_elements:
            raise Conflict("No element of the array has failed.", data={"counts": dict(array.counts)})
        await self.factory.state.check_running()
        limits = await self.factory.limits_of(owner)
        await self.factory.check_rights(caller, owner, failed_elements[0])  # all elements are of one request
        now = self.clock.now()
        sessions = [
            model.renew_session(replace(with_largest_amounts(session), starts_at=None), now, self.id_generator)
            for session in failed_elements
        ]
        await self.sessions.check_hooks(owner, sessions[0])
        live_count = sum(not session.status.is_final for session in elements)
        free_count = len(sessions) if array.max_parallel is None else max(0, array.max_parallel - live_count)
        await self._insert(
            _hold_elements(sessions, free_count),
            limits=limits,
            replaced_ids=[session.id for session in failed_elements],
        )
        return await self.get(caller, str(array.id), owner_access_key=owner_access_key), len(sessions)

    async def _find_array(
        self, caller: Caller, ref: str, owner_access_key: str | None, operation: Operation
    ) -> model.SessionArray:
        owner = await self.identity.resolve_owner(caller, owner_access_key)
        name_query = model.ArrayQuery(name=ref, access_key=owner.access_key, limit=1)
        try:
            query = model.ArrayQuery(array_id=UUID(ref), limit=1)
        except ValueError:
            query = name_query
        page = await self.store.arrays(query)
        array = next(iter(page.items), None)
        if array is None or not _is_permitted(caller, Operation.SEE_SESSIONS, array):
            raise SessionNotFound(f"There is no such array: {ref[:64]!r}.")
        if not _is_permitted(caller, operation, array):
            raise Forbidden("The array belongs to somebody else.")
        return array

    async def _insert(self, sessions: Sequence[Session], **options: Any) -> None:
        await self.store.insert([(session, enqueued_event(session)) for session in sessions], **options)
        self.writer.cache(sessions)
        self.bus.publish(OUTBOX)
        self.bus.publish(SCHEDULE)
        self.bus.publish(ARRAY)


def _is_permitted(caller: Caller, operation: Operation, array: model.SessionArray) -> bool:
    is_own = array.user_id == caller.user_id
    return is_permitted(caller, operation, domain_name=array.domain_name, is_own=is_own)


def _hold_elements(sessions: Sequence[Session], unheld_count: int) -> list[Session]:
    """Returns all elements, with every element after the first ``unheld_count`` marked as held."""
    return [
        *sessions[:unheld_count],
        *(replace(session, starts_at=model.HELD_UNTIL) for session in sessions[unheld_count:]),
    ]


def _change_batches(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    for batch_start in range(0, len(changes), _CHANGES_PER_COMMIT):
        yield changes[batch_start : batch_start + _CHANGES_PER_COMMIT]
