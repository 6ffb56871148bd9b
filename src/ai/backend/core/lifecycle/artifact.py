"""Defines the state machine of an artifact's revision, from import to removal (spec 03-17, "Status Lifecycle").

Rules:

1. An import leads from SCANNED over PULLING (the files are fetched and verified) and PULLED (they are moved to where
   they stay) to AVAILABLE.
2. What ends an import early, a failure or a cancel, leads back to SCANNED, and so does a cleanup. There is no status
   for failures: the reason is kept beside the status.
3. Every way back to SCANNED leaves a residue: files that may still lie somewhere. They are removed before anything else
   happens to the revision; an import that is asked for meanwhile waits for that.
4. An import of what is being imported or is available changes nothing; cancelling needs an import, and a cleanup needs
   that none is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition, Transitions

S = RevisionStatus


class RevisionTrigger(StrEnum):
    IMPORT_REQUESTED = "import-requested"
    DOWNLOADED = "downloaded"
    ARCHIVED = "archived"
    FAILED = "failed"
    CANCEL_REQUESTED = "cancel-requested"
    CLEANUP_REQUESTED = "cleanup-requested"


T = RevisionTrigger

TRANSITIONS: Mapping[RevisionStatus, Mapping[RevisionTrigger, RevisionStatus]] = {
    S.SCANNED: {
        T.IMPORT_REQUESTED: S.PULLING,
    },
    S.PULLING: {
        T.DOWNLOADED: S.PULLED,
        T.FAILED: S.SCANNED,
        T.CANCEL_REQUESTED: S.SCANNED,
    },
    S.PULLED: {
        T.ARCHIVED: S.AVAILABLE,
        T.FAILED: S.SCANNED,
        T.CANCEL_REQUESTED: S.SCANNED,
    },
    S.AVAILABLE: {
        T.CLEANUP_REQUESTED: S.SCANNED,
    },
}
#: The pairs without a row that are refused, with the reason in half a sentence. All others change nothing.
REFUSALS: Mapping[tuple[RevisionStatus, RevisionTrigger], str] = {
    (S.SCANNED, T.CANCEL_REQUESTED): "it is not being imported",
    (S.AVAILABLE, T.CANCEL_REQUESTED): "its import is done; clean it up instead",
    (S.PULLING, T.CLEANUP_REQUESTED): "it is being imported; cancel that first",
    (S.PULLED, T.CLEANUP_REQUESTED): "it is being imported; cancel that first",
}


class RevisionState(msgspec.Struct, frozen=True):
    """Holds the state of one artifact revision.

    ``residue``: files of it may remain somewhere that are no longer needed.
    """

    status: RevisionStatus = RevisionStatus.SCANNED
    residue: bool = False


def step(
    state: RevisionState,
    trigger: RevisionTrigger,
    *,
    subject: str = "",
    stimulus_id: str = "",
    recent_transitions: Transitions = (),
) -> tuple[RevisionState, Transitions, tuple[()]]:
    """Applies one trigger to an artifact revision.

    Returns:
        The next state and the transition that led there; the same state and an empty path for a late trigger. There
        are no effects: the loop that imports and removes files reads the state.

    Raises:
        InvalidTransition: the status does not admit what is requested; the message says why, in half a sentence.
    """
    if (reason := REFUSALS.get((state.status, trigger))) is not None:
        raise InvalidTransition(
            reason,
            subject=subject,
            state=state.status,
            trigger=trigger,
            stimulus_id=stimulus_id,
            recent_transitions=recent_transitions,
        )
    next_status = TRANSITIONS[state.status].get(trigger)
    if next_status is None:
        return state, (), ()
    transitions = (Transition(state.status, trigger, next_status, stimulus_id),)
    return RevisionState(next_status, state.residue or next_status is S.SCANNED), transitions, ()
