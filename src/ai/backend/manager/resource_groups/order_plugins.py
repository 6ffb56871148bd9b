"""Loads ordering plugins and adapts them to the interface of the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.index.equivalence import QueuedSession
from ai.backend.core.scheduling.ordering.queue import Order, Queue, StaticQueue
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.plugin.entries import load_class
from ai.backend.plugin.ordering import ENTRY_POINT_GROUP, AbstractOrder, Usage, Waiting

log = logging.getLogger(__name__)


@cache
def load_order_plugin(name: str) -> Order | None:
    """Returns the order of the ordering plugin with this name, or None if the plugin cannot be loaded.

    A failure of an installed plugin is logged.
    """
    try:
        return adapt_order(name, load_class(ENTRY_POINT_GROUP, name, AbstractOrder)())
    except InvalidInput:
        return None
    except PluginError as e:
        log.error("%s", e)
    except Exception:  # its constructor; a failing plugin must not stop the scheduler
        log.exception("the ordering plugin %s cannot be made", name)
    return None


def adapt_order(name: str, plugin: AbstractOrder) -> Order:
    """Returns an order of the scheduler that sorts the queue by an ordering plugin.

    Sessions that the plugin does not name follow, larger priorities and then older ones first. If the plugin fails, or
    names a session that is not in the queue, this is logged, and all sessions have that order.
    """

    def order(queued_sessions: Sequence[QueuedSession], snapshot: Snapshot, capacity: ResourceSlot) -> Queue:
        sessions_by_id = {queued_session.session.session_id: queued_session for queued_session in queued_sessions}
        try:
            usage = Usage(capacity=capacity, occupied=snapshot.occupied)
            ordered_ids = plugin.order([_waiting_session(queued_session) for queued_session in queued_sessions], usage)
            ordered_sessions = [sessions_by_id.pop(session_id) for session_id in dict.fromkeys(ordered_ids)]
        except Exception:  # a failing plugin must not stop the scheduler
            log.exception("the ordering plugin %s failed; the oldest sessions go first", name)
            return StaticQueue(queued_sessions)
        return StaticQueue([*ordered_sessions, *sessions_by_id.values()])

    return order


def _waiting_session(queued_session: QueuedSession) -> Waiting:
    session = queued_session.session
    return Waiting(
        session_id=session.session_id,
        session_type=session.session_type,
        priority=session.priority,
        enqueued_at=session.enqueued_at,
        requested=session.total,
        kernels=len(session.kernels),
        scope=session.scope,
    )
