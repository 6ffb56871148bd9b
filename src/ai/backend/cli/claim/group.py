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


def claim_row(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a claim as a row of a table."""
    return {
        **item,
        "status": f"{item['status']}, deleting" if item["is_deleting"] else item["status"],
        "slots": describe_slots(item["requested_slots"]),
        "held": describe_devices(item["devices"]),
        "users": ", ".join(session["name"] for session in item["sessions"]),
    }


def describe_devices(devices: Mapping[str, Mapping[str, str]]) -> str:
    """Returns ``mock-0, mock-1``."""
    return ", ".join(sorted({device_id for of_slot in devices.values() for device_id in of_slot}))
