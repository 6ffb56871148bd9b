"""The group of `backend.ai claim`, and how device claims are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.cli.framework.lazy import LazyGroup
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import describe_slots

claim = LazyGroup("claim", help="Device claims: accelerators that stay yours between sessions.")
CLAIM_COLUMNS = columns(
    "name | id/short: ID | status | slots: Requests | held: Devices | users: Sessions | problem | "
    "created_at/time: Created"
)


def claim_row(claim_item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a claim as a row of a table."""
    return {
        **claim_item,
        "status": f"{claim_item['status']}, deleting" if claim_item["is_deleting"] else claim_item["status"],
        "slots": describe_slots(claim_item["requested_slots"]),
        "held": describe_devices(claim_item["devices"]),
        "users": ", ".join(session["name"] for session in claim_item["sessions"]),
    }


def describe_devices(devices: Mapping[str, Mapping[str, str]]) -> str:
    """Formats the ids of the devices that a claim holds, as ``mock-0, mock-1``."""
    return ", ".join(sorted({device_id for slot_devices in devices.values() for device_id in slot_devices}))
