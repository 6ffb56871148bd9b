"""Defines arrays of sessions, and parses the notation of their indices. Pure.

An array has no row of its own: its elements carry its id, name and limit, so that it begins and ends with them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common import ids
from ai.backend.common.errors import InvalidInput, LimitExceeded
from ai.backend.common.states import LIVE_SESSION_STATUSES, SessionResult, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.query.model import ListQuery
from ai.backend.manager.sessions.model import Kernel, Session

HELD_UNTIL = datetime(9999, 1, 1, tzinfo=UTC)
"""The ``starts_at`` of an element that is held because enough other elements of its array run."""
MAX_INDEX = 1_000_000_000
VARIABLE_PREFIX = "BACKENDAI_ARRAY_"
_PART_PATTERN = re.compile(r"(\d{1,12})(?:-(\d{1,12})(?::(\d{1,12}))?)?")
_LIMIT_PATTERN = re.compile(r"[1-9]\d{0,8}")
_COPIED_FIELDS = frozenset(
    (
        *("type", "domain_name", "group_id", "group_name", "user_id", "user_email", "access_key", "created_by"),
        *("image", "architecture", "tag", "cluster_mode", "cluster_size", "runtime_class", "requested_slots"),
        *("variant_requirements", "device_requests", "plugin_options", "diagnosed_devices", "resource_opts", "environ"),
        "mounts",
        *(
            "vfolder_mounts",
            "startup_command",
            "bootstrap_script",
            "callback_url",
            "dependencies",
            "scaling_group",
            "designated_agents",
            "claim_id",
            "claim_name",
        ),
        *("preopen_ports", "batch_timeout_s", "exec_timeout_s", "priority", "name", "starts_at", "trace"),
        *(field for field in Session.__struct_fields__ if field.startswith("array_")),
    )
)
_COPIED_KERNEL_FIELDS = (
    *("cluster_role", "cluster_idx", "local_rank", "cluster_hostname", "image", "architecture", "requested_slots"),
    "role_options",
)


class ArrayQuery(ListQuery, frozen=True, kw_only=True):
    """Selects arrays by owner, domain, id or name, the newest first.

    A field that is None does not restrict the selection. ``is_live``: those with elements that have not ended.
    """

    access_key: str | None = None
    domain_name: str | None = None
    array_id: UUID | None = None
    name: str | None = None
    is_live: bool = False


class SessionArray(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an array by the present state of its elements.

    Attributes:
        max_parallel: how many elements may be scheduled at a time; None is all.
        counts: status -> number of elements; an ended batch session counts by its result, SUCCESS or FAILURE.
    """

    id: UUID
    name: str
    access_key: ids.AccessKey
    user_id: ids.UserId
    domain_name: ids.DomainName
    group_name: str
    image: str
    created_at: datetime
    max_parallel: int | None
    counts: Mapping[str, int]

    @property
    def size(self) -> int:
        return sum(self.counts.values())

    @property
    def status(self) -> str:
        """Returns the status of the whole array: PENDING or RUNNING while elements live, and then SUCCESS or FAILURE.
        It is SUCCESS only if all elements succeeded.
        """
        live_statuses = self.counts.keys() & {status.value for status in LIVE_SESSION_STATUSES}
        if live_statuses:
            return "PENDING" if live_statuses == {"PENDING"} else "RUNNING"
        return "SUCCESS" if set(self.counts) == {"SUCCESS"} else "FAILURE"


class Throttle(msgspec.Struct, frozen=True, kw_only=True):
    """Holds, for an array with held elements, the number of elements that may be scheduled now."""

    array_id: UUID
    free: int


def outcome(status: SessionStatus, result: SessionResult) -> str:
    """Returns the word under which an element is counted: its result, or its status if it has no result."""
    has_result = status is SessionStatus.TERMINATED and result is not SessionResult.UNDEFINED
    return result.value.upper() if has_result else status.value


def has_failed(session: Session) -> bool:
    """Returns True if an element has ended without success."""
    return session.status.is_final and outcome(session.status, session.result) != "SUCCESS"


def parse_indices(indices_text: str, *, limit: int) -> tuple[tuple[int, ...], int | None]:
    """Parses indices such as ``0-99:5%8``. Returns the indices, and the number after ``%`` or None.

    Other forms are ``1-1000`` and ``1,3,7-9``. The number after ``%`` says how many elements may run at a time.
    Raises InvalidInput if it is written otherwise, and LimitExceeded for more than ``limit`` indices.
    """
    range_list, has_limit, parallel_text = indices_text.replace(" ", "").partition("%")
    indices: list[int] = []
    for range_text in range_list.split(","):
        match = _PART_PATTERN.fullmatch(range_text)
        if match is None:
            message = (
                f"{indices_text[:64]!r} is not written 1-1000, 0-99:5 or 1,3,7-9, with %N for N elements at a time"
            )
            raise InvalidInput(message, data={"indices": "malformed"})
        first_index, last_index, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last_index < first_index or step == 0 or last_index > MAX_INDEX:
            message = f"{range_text[:64]!r} must go upwards, by at least 1, to {MAX_INDEX} at most"
            raise InvalidInput(message, data={"indices": "out of range"})
        index_range = range(first_index, last_index + 1, step)
        if len(indices) + len(index_range) > limit:
            message = f"An array has at most {limit} elements."
            raise LimitExceeded(message, data={"indices": limit})
        indices += index_range
    if len(set(indices)) != len(indices):
        raise InvalidInput("an index is named twice", data={"indices": "repeated"})
    if has_limit and not _LIMIT_PATTERN.fullmatch(parallel_text):
        raise InvalidInput("after % stands how many elements may run at a time", data={"indices": "malformed"})
    return tuple(sorted(indices)), int(parallel_text) if has_limit else None


def array_variables(array_id: UUID, name: str, indices: Collection[int]) -> dict[str, str]:
    """Returns the environment variables that are equal in all elements of an array: its id, name, count, MIN and MAX.

    MIN and MAX are the lowest and the highest index. Each element has its own index in addition.
    """
    values = {"ID": array_id, "NAME": name, "COUNT": len(indices), "MIN": min(indices), "MAX": max(indices)}
    return {f"{VARIABLE_PREFIX}{key}": str(value) for key, value in values.items()}


def new_element(array: Session, index: int, generator: IdGenerator) -> Session:
    """Returns a new session that is the element of an array with the given index.

    ``array`` is any session that has what all elements share.
    """
    return replace(
        renew_session(array, array.created_at, generator),
        name=f"{array.array_name}-{index}",
        array_index=index,
        environ={**array.environ, f"{VARIABLE_PREFIX}INDEX": str(index)},
    )


def renew_session(session: Session, now: datetime, generator: IdGenerator) -> Session:
    """Returns a new PENDING session with the same request as an existing session."""
    session_id = ids.SessionId(generator.uuid())
    copied_fields: dict[str, Any] = {name: getattr(session, name) for name in _COPIED_FIELDS}
    return Session(
        **copied_fields,
        id=session_id,
        status=SessionStatus.PENDING,
        status_history={SessionStatus.PENDING.value: now.isoformat()},
        status_changed=now,
        created_at=now,
        kernels=tuple(_renew_kernel(kernel, session_id, now, generator) for kernel in session.kernels),
    )


def _renew_kernel(kernel: Kernel, session_id: ids.SessionId, now: datetime, generator: IdGenerator) -> Kernel:
    copied_fields: dict[str, Any] = {name: getattr(kernel, name) for name in _COPIED_KERNEL_FIELDS}
    kernel_id = ids.KernelId(session_id if kernel.local_rank == 0 else generator.uuid())
    return Kernel(**copied_fields, id=kernel_id, session_id=session_id, status_changed=now, created_at=now)
