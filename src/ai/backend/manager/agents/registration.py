"""Registration of agents."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ai.backend.common.devices import SlotDisplay
from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import SlotName
from ai.backend.common.names import check_slot_name
from ai.backend.common.states import SlotType
from ai.backend.common.wire.reports import AgentReport, SlotReport
from ai.backend.manager.agents.model import SlotTypeInfo

log = logging.getLogger(__name__)


_BEAT_S = 5.0


def _slot_types(report: AgentReport) -> list[SlotTypeInfo]:
    """Raises InvalidInput, InvalidName."""
    try:
        return [
            SlotTypeInfo(
                slot_name=SlotName(check_slot_name(s.slot_name)), slot_type=SlotType(s.slot_type), display=_display(s)
            )
            for s in report.slots
        ]
    except ValueError as e:
        raise InvalidInput(f"the report has a slot of no known type: {e}", data={"slots": "malformed"}) from None


def _display(slot: SlotReport) -> Mapping[str, Any]:
    """Nothing where it cannot be read: how a slot looks must not keep an agent out."""
    if not slot.display:
        return {}
    try:
        shown = msgspec.convert(slot.display, SlotDisplay)
    except msgspec.ValidationError as e:
        log.warning("the display data of the slot %s cannot be read: %s", slot.slot_name, e)
        return {}
    told: dict[str, Any] = msgspec.to_builtins(shown)
    return told


def _without(report: AgentReport, refused: Mapping[str, str]) -> AgentReport:
    """The report without slots that were refused; the plugin that offers one says why."""
    if not refused:
        return report
    devices: list[dict[str, Any]] = []
    reasons: dict[str, list[str]] = {}
    for device in report.devices:
        slots = device.get("slots", ())
        devices.append({**device, "slots": [s for s in slots if s.get("slot_name") not in refused]})
        for name in {s.get("slot_name") for s in slots} & refused.keys():
            reasons.setdefault(str(device.get("device_name")), []).append(refused[name])
    plugins = [
        msgspec.structs.replace(p, reason="; ".join([*filter(None, [p.reason]), *dict.fromkeys(reasons[p.name])]))
        if p.name in reasons
        else p
        for p in report.plugins
    ]
    return msgspec.structs.replace(report, devices=devices, plugins=plugins)
