"""Defines field types and formats that requests and replies share."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from ai.backend.infra.http.decode import refuse

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Word = Annotated[str, Meta(min_length=1, max_length=256)]
LongText = Annotated[str, Meta(max_length=262_144)]
Path = Annotated[str, Meta(min_length=1, max_length=4_096, pattern="^[^\\x00]*$", description="a path without NUL")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
PortText = Annotated[
    str,
    Meta(
        pattern="^([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$",
        description="a port",
    ),
]
Duration = Annotated[
    str,
    Meta(max_length=32, pattern="^(?=.*[1-9])[0-9]+(\\.[0-9]+)?[smhd]?$", description="a duration such as 30s or 1.5h"),
]
"""Seconds, or a number with a unit: ``90``, ``30s``, ``1.5h``."""
SessionName = Annotated[
    str,
    Meta(
        min_length=4,
        max_length=64,
        pattern="^[A-Za-z0-9]+([-_.]+[A-Za-z0-9]+)*$",
        description="letters and digits, with - _ . inside",
    ),
]
FileName = Annotated[
    str, Meta(min_length=1, max_length=1_024, pattern="^[^/\\x00]+$", description="a file name without /")
]


class EmptyReply(TypedDict):
    """An object without fields, for clients that parse the reply."""


class Success(TypedDict):
    success: Literal[True]


_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def iso(moment: datetime | None) -> str | None:
    """Formats a time in ISO 8601 with its zone, as the spec's ``datetime``."""
    return moment.isoformat() if moment is not None else None


def duration_s(value: float | str | None, *, field: str = "batchTimeout") -> float | None:
    """Parses seconds from a number or a text such as ``90``, ``30s``, ``5m``, ``1h``, ``2d``.

    Raises InvalidInput that names the field.
    """
    if value is None or isinstance(value, float):
        return value
    number_text, unit_s = (
        (value[:-1], _SECONDS_BY_UNIT[value[-1]]) if value and value[-1] in _SECONDS_BY_UNIT else (value, 1)
    )
    try:
        duration_in_s = float(number_text) * unit_s
    except ValueError:
        duration_in_s = -1.0
    if not 0 < duration_in_s < float("inf"):
        raise refuse({field: "not a duration; write seconds, or as 30s, 5m, 1h"})
    return duration_in_s


def port_number(port: int | str) -> int:
    """Parses a port number from a number or text. Raises InvalidInput."""
    number = int(port)
    if not 0 < number < 65_536:
        raise refuse({"config.preopen_ports": f"{number} is not a port"})
    return number
