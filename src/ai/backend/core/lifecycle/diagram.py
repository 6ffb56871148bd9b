"""Generates the reference page of the state machines from their tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, StrEnum
from typing import Any

import msgspec

from ai.backend.common.artifacts import RevisionStatus
from ai.backend.common.device_operations import FINAL_OPERATION_PHASES, OperationPhase
from ai.backend.common.folders import FolderStatus
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus
from ai.backend.common.states import FINAL_KERNEL_STATUSES, ClaimStatus, KernelStatus
from ai.backend.core.lifecycle import artifact, claim, device_operation, endpoint, folder, kernel, kernel_phase, session

_PAGE_HEAD = """\
Written from the tables in `src/ai/backend/core/lifecycle` by `python -m tools.docs`; do not edit.
A row whose next state is its own only runs its handler. A pair of state and trigger that is not listed changes nothing
and is no error. The last column names the handler of the row, or the effects that it asks for."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one state machine on the reference page.

    ``refused``: the pairs without a row that raise InvalidTransition.
    """

    title: str
    doc: str | None
    table: Mapping[Any, Mapping[Any, Any]]
    initial: Collection[StrEnum]
    final: Collection[StrEnum] = ()
    refused: Collection[tuple[StrEnum, StrEnum]] = ()


def _refused_pairs(
    table: Mapping[Any, Mapping[Any, Any]], requests: Collection[StrEnum]
) -> list[tuple[StrEnum, StrEnum]]:
    return [(state, trigger) for state, rows in table.items() for trigger in sorted(requests) if trigger not in rows]


MACHINES = (
    Machine(
        title="Session",
        doc=session.__doc__,
        table=session.TRANSITIONS,
        initial=(session.SessionPhase.PENDING,),
        final=(session.SessionPhase.CANCELLED, session.SessionPhase.ERROR, session.SessionPhase.TERMINATED),
        refused=_refused_pairs(session.TRANSITIONS, session.REQUESTS),
    ),
    Machine(
        title="Kernel",
        doc=kernel.__doc__,
        table=kernel.TRANSITIONS,
        initial=(KernelStatus.PENDING,),
        final=sorted(FINAL_KERNEL_STATUSES),
        refused=_refused_pairs(kernel.TRANSITIONS, kernel.REQUESTS),
    ),
    Machine(
        title="Kernel on its agent",
        doc=kernel_phase.__doc__,
        table=kernel_phase.TRANSITIONS,
        initial=(kernel_phase.Phase.CREATING,),
        final=(kernel_phase.Phase.ENDED,),
        refused=_refused_pairs(kernel_phase.TRANSITIONS, kernel_phase.REQUESTS),
    ),
    Machine(
        title="Folder",
        doc=folder.__doc__,
        table=folder.TRANSITIONS,
        initial=(FolderStatus.PERFORMING, FolderStatus.CLONING),
        final=(FolderStatus.DELETE_COMPLETE,),
        refused=_refused_pairs(folder.TRANSITIONS, folder.REQUESTS),
    ),
    Machine(
        title="Revision of an artifact",
        doc=artifact.__doc__,
        table=artifact.TRANSITIONS,
        initial=(RevisionStatus.SCANNED,),
        refused=tuple(artifact.REFUSALS),
    ),
    Machine(
        title="Device claim",
        doc=claim.__doc__,
        table=claim.TRANSITIONS,
        initial=(ClaimStatus.UNALLOCATED,),
        final=(ClaimStatus.DELETED,),
        refused=tuple(claim.REFUSALS),
    ),
    Machine(
        title="Endpoint",
        doc=endpoint.__doc__,
        table=endpoint.ENDPOINT_TRANSITIONS,
        initial=(EndpointStatus.PROVISIONING,),
        final=(EndpointStatus.DESTROYED,),
        refused=_refused_pairs(endpoint.ENDPOINT_TRANSITIONS, endpoint.ENDPOINT_REQUESTS),
    ),
    Machine(
        title="Revision of an endpoint",
        doc=None,
        table=endpoint.REVISION_TRANSITIONS,
        initial=(ServedRevisionStatus.PENDING,),
        refused=_refused_pairs(endpoint.REVISION_TRANSITIONS, endpoint.REVISION_REQUESTS),
    ),
    Machine(
        title="Replica of an endpoint",
        doc=None,
        table=endpoint.REPLICA_TRANSITIONS,
        initial=(ReplicaStatus.PROVISIONING,),
        final=(ReplicaStatus.TERMINATED,),
    ),
    Machine(
        title="Operation on an accelerator of Kubernetes",
        doc=device_operation.__doc__,
        table=device_operation.TRANSITIONS,
        initial=(OperationPhase.PENDING,),
        final=sorted(FINAL_OPERATION_PHASES),
    ),
)


def target_of(state: StrEnum, row: Any) -> StrEnum:
    """Returns the state to which a table row leads from ``state``; ``state`` itself if the row names no other."""
    next_state: StrEnum | None = row[0] if isinstance(row, tuple) else row
    return state if next_state is None else next_state


def triggers_by_state_change(table: Mapping[Any, Mapping[Any, Any]]) -> dict[tuple[StrEnum, StrEnum], list[StrEnum]]:
    """Returns every (from, to) pair of different states with its triggers, in the order of the table."""
    triggers_of_pair: dict[tuple[StrEnum, StrEnum], list[StrEnum]] = {}
    for state, rows in table.items():
        for trigger, row in rows.items():
            if (next_state := target_of(state, row)) is not state:
                triggers_of_pair.setdefault((state, next_state), []).append(trigger)
    return triggers_of_pair


def _node_name(state: StrEnum) -> str:
    """Returns a state's name without hyphens, because Mermaid does not accept hyphens."""
    return state.replace("-", "_")


def render_mermaid(machine: Machine) -> str:
    """Returns one table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {_node_name(state)}" for state in machine.initial]
    lines += [
        f"    {_node_name(from_state)} --> {_node_name(next_state)}: {', '.join(triggers)}"
        for (from_state, next_state), triggers in triggers_by_state_change(machine.table).items()
    ]
    lines += [f"    {_node_name(state)} --> [*]" for state in machine.final]
    return "\n".join(lines)


def _action_name(row: Any) -> str:
    """Returns the name of a row's handler or effects. Returns an empty text if the row has no action."""
    action = row[1] if isinstance(row, tuple) else None
    if isinstance(action, tuple):
        return ", ".join(effect.value for effect in action if isinstance(effect, Enum))
    return "" if action is None else str(action.__name__).removeprefix("_")


def _text_table(machine: Machine) -> str:
    """Returns one transition table as text, with the rows that change a state or act, and with the refused triggers."""
    lines = ["| state | trigger | next | handler or effects |", "|---|---|---|---|"]
    for state, rows in machine.table.items():
        for trigger, row in rows.items():
            lines.append(f"| {state} | {trigger} | {target_of(state, row)} | {_action_name(row)} |")
        lines += [
            f"| {state} | {trigger} | *refused* | |"
            for refused_state, trigger in machine.refused
            if refused_state is state
        ]
    return "\n".join(lines)


def render() -> str:
    """Returns the text of docs/reference/state-machines.md."""
    page_parts = ["# State machines", _PAGE_HEAD]
    for machine in MACHINES:
        machine_rules = (machine.doc or "").partition("Rules:")[2].strip()
        page_parts += [
            f"## {machine.title}",
            *([machine_rules] if machine_rules else []),
            f"```mermaid\n{render_mermaid(machine)}\n```",
            _text_table(machine),
        ]
    return "\n\n".join(page_parts) + "\n"
