"""Defines the state machine of a virtual folder: creation, trash and removal of its directory (spec 03-07, 03-08).

Rules:

1. The row comes first and says what is to be; the directory follows. PERFORMING is a folder that is being made, CLONING
   one that is being filled from another, DELETE_ONGOING one whose files are being removed.
2. A folder that could not be made or filled is removed again.
3. Only what is ready or in error can be put into the trash, and only what is in the trash can be restored or purged. A
   folder whose files could not be removed (DELETE_ERROR) is in the trash too, but cannot be restored.
4. When its owner is removed, a folder is removed in whatever status it is.
5. DELETE_COMPLETE never changes. ERROR is entered by no transition: it is the status of rows that were taken over.
6. What users ask for is refused where it has no row; any other trigger without a row is late or repeated and changes
   nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ai.backend.common.folders import FolderStatus
from ai.backend.core.lifecycle.transition import Transition, Transitions, find_row

S = FolderStatus


class FolderTrigger(StrEnum):
    MADE = "made"
    FILLED = "filled"
    FAILED = "failed"
    TRASH_REQUESTED = "trash-requested"
    RESTORE_REQUESTED = "restore-requested"
    PURGE_REQUESTED = "purge-requested"
    EXPIRED = "expired"
    OWNER_REMOVED = "owner-removed"
    REMOVED = "removed"
    REMOVAL_FAILED = "removal-failed"


T = FolderTrigger


class FolderEffect(StrEnum):
    """Lists the effects of a virtual folder's stored transitions.

    ``remove-files``: the folder loop removes the directory now.
    """

    REMOVE_FILES = "remove-files"


E = FolderEffect
Row = tuple[FolderStatus, tuple[FolderEffect, ...]]

TRANSITIONS: Mapping[FolderStatus, Mapping[FolderTrigger, Row]] = {
    S.PERFORMING: {
        T.MADE: (S.READY, ()),
        T.FAILED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
        T.OWNER_REMOVED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
    },
    S.CLONING: {
        T.FILLED: (S.READY, ()),
        T.FAILED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
        T.OWNER_REMOVED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
    },
    S.READY: {
        T.TRASH_REQUESTED: (S.DELETE_PENDING, ()),
        T.OWNER_REMOVED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
    },
    S.ERROR: {
        T.TRASH_REQUESTED: (S.DELETE_PENDING, ()),
        T.OWNER_REMOVED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
    },
    S.DELETE_PENDING: {
        T.RESTORE_REQUESTED: (S.READY, ()),
        T.PURGE_REQUESTED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
        T.EXPIRED: (S.DELETE_ONGOING, ()),
        T.OWNER_REMOVED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
    },
    S.DELETE_ONGOING: {
        T.REMOVED: (S.DELETE_COMPLETE, ()),
        T.REMOVAL_FAILED: (S.DELETE_ERROR, ()),
    },
    S.DELETE_ERROR: {
        T.PURGE_REQUESTED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
        T.OWNER_REMOVED: (S.DELETE_ONGOING, (E.REMOVE_FILES,)),
    },
    S.DELETE_COMPLETE: {},
}
#: A request without a row is refused; any other trigger without a row is late or repeated.
REQUESTS = frozenset({T.TRASH_REQUESTED, T.RESTORE_REQUESTED, T.PURGE_REQUESTED})
_STATUS_TEXTS = {S.READY: "not in the trash", S.DELETE_PENDING: "in the trash"}


def sources_of(trigger: FolderTrigger) -> frozenset[FolderStatus]:
    """Returns the folder statuses from which a trigger leads to another status."""
    return frozenset(status for status, rows in TRANSITIONS.items() if trigger in rows)


def describe_status(name: str, status: FolderStatus) -> str:
    """Returns a text for users that describes the status of a folder."""
    return f"The folder {name!r} is {_STATUS_TEXTS.get(status, status.value)}."


def step(
    status: FolderStatus,
    trigger: FolderTrigger,
    *,
    name: str = "",
    stimulus_id: str = "",
    recent_transitions: Transitions = (),
) -> tuple[FolderStatus, Transitions, tuple[FolderEffect, ...]]:
    """Applies one trigger to a virtual folder. ``stimulus_id`` names the cause.

    ``name`` and ``recent_transitions`` are for the error.

    Returns:
        The next status, the transition that led there, and what is to follow once it is stored; the same status and
        nothing else if the trigger is out of date.

    Raises:
        InvalidTransition: the status does not admit what a user asks for.
    """
    message, subject = describe_status(name, status), f"folder {name}"
    row = find_row(
        TRANSITIONS,
        REQUESTS,
        status,
        trigger,
        message=message,
        subject=subject,
        stimulus_id=stimulus_id,
        recent_transitions=recent_transitions,
    )
    if row is None:
        return status, (), ()
    next_status, effects = row
    return next_status, (Transition(status, trigger, next_status, stimulus_id),), effects
