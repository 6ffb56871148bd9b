"""The machine of one revision of an artifact: how its files come here, and go (spec 03-17, "Status Lifecycle").

Rules:

1. An import leads from SCANNED over PULLING (the files are fetched and verified) and PULLED (they are moved to where
   they stay) to AVAILABLE.
2. What ends an import early, a failure or a cancel, leads back to SCANNED, and so does a cleanup. There is no status
   for failures: the reason is kept beside the status.
3. Every way back to SCANNED leaves a residue: files that may still lie somewhere. They are removed before anything else
   happens to the revision; an import that is asked for meanwhile waits for that.
4. An import of what is being imported or is available changes nothing; cancelling needs an import, and a cleanup needs
   that none is under way.

``step`` is total over (status, trigger).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.errors import Conflict
from ai.backend.core.lifecycle.outcomes import Outcome

S = RevisionStatus


class RevisionTrigger(StrEnum):
    IMPORT_REQUESTED = "import-requested"
    DOWNLOADED = "downloaded"
    ARCHIVED = "archived"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel-requested"
    CLEANUP_REQUESTED = "cleanup-requested"


T = RevisionTrigger

_MOVES: Mapping[RevisionStatus, Mapping[RevisionTrigger, RevisionStatus | Outcome]] = {
    S.SCANNED: {T.IMPORT_REQUESTED: S.PULLING, T.CANCEL_REQUESTED: Outcome.REFUSED},
    S.PULLING: {
        T.DOWNLOADED: S.PULLED,
        T.FAILED: S.SCANNED,
        T.CANCEL_REQUESTED: S.SCANNED,
        T.CLEANUP_REQUESTED: Outcome.REFUSED,
    },
    S.PULLED: {
        T.ARCHIVED: S.AVAILABLE,
        T.FAILED: S.SCANNED,
        T.CANCEL_REQUESTED: S.SCANNED,
        T.CLEANUP_REQUESTED: Outcome.REFUSED,
    },
    S.AVAILABLE: {T.CLEANUP_REQUESTED: S.SCANNED, T.CANCEL_REQUESTED: Outcome.REFUSED},
}

TRANSITIONS: Mapping[tuple[RevisionStatus, RevisionTrigger], RevisionStatus | Outcome] = MappingProxyType(
    {(status, trigger): _MOVES[status].get(trigger, Outcome.IGNORED) for status in S for trigger in T}
)

_WHY_NOT = {
    (S.SCANNED, T.CANCEL_REQUESTED): "it is not being imported",
    (S.AVAILABLE, T.CANCEL_REQUESTED): "its import is done; clean it up instead",
    (S.PULLING, T.CLEANUP_REQUESTED): "it is being imported; cancel that first",
    (S.PULLED, T.CLEANUP_REQUESTED): "it is being imported; cancel that first",
}


@dataclass(frozen=True, slots=True)
class RevisionState:
    """``residue``: files of it may lie somewhere that are of no use any more."""

    status: RevisionStatus = RevisionStatus.SCANNED
    residue: bool = False


def step(state: RevisionState, trigger: RevisionTrigger) -> RevisionState:
    """The next state; the same one if the trigger is out of date.

    Raises:
        Conflict: the status does not admit what is requested; the message says why, in half a sentence.
    """
    target = TRANSITIONS[state.status, trigger]
    if target is Outcome.REFUSED:
        raise Conflict(_WHY_NOT[state.status, trigger], data={"status": state.status.value})
    if isinstance(target, Outcome):
        return state
    return RevisionState(target, state.residue or target is S.SCANNED)
