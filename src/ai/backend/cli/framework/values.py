"""Formats values as text: sizes, times, amounts of slots, ids, and any other value of a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_TIME_PATTERN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)"
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_METRIC_UNITS = {
    "percent": "%", "pct": "%", "msec": " ms", "celsius": " C", "Celsius": " C", "watt": " W", "joule": " J",
    "hertz": " Hz", "count": "",
}  # fmt: skip
_DAY_S = 86_400
_SEQUENCE = re.compile(
    r"(\x1b\[[0-9;:]*[mK])"
    r"|\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
"""Sequences and control characters of ECMA-48, those first that :func:`keep_colours` keeps."""
_SHORT_ID_LENGTH = 8

SlotDisplays = Mapping[str, Mapping[str, Any]]
"""Slot -> how its plugin displays quantities (``/config/resource-slots/details``)."""
_NO_DISPLAYS: SlotDisplays = {}


def escape_control_characters(text: str) -> str:
    """Replaces control characters by escapes, so that no terminal obeys them. Line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def keep_colours(text: str) -> str:
    """Removes escape sequences and control characters from a program's output, except colours and erased lines.

    Other sequences would write the terminal's clipboard, its title, or over what it has shown.
    """
    return _SEQUENCE.sub(lambda match: match[1] or "", text)


def format_cell(value: Any) -> str:
    """Formats any value as text in one line, without control characters."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} ({format_cell(item)})" if item and isinstance(item, Mapping) else f"{name}={format_cell(item)}"
            for name, item in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(format_cell(item) for item in value)
    if isinstance(value, str) and re.fullmatch(_TIME_PATTERN, value):
        return readable_time(value)
    return escape_control_characters(" ".join(str(value).split()))


def parse_if_json(value: Any) -> Any:
    """Parses a string that holds JSON; returns anything else unchanged."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def shorten_id(value: Any) -> str:
    """Returns the first digits of an id, which every command accepts in the place of the id."""
    return format_cell(value)[:_SHORT_ID_LENGTH]


def readable_size(size: float) -> str:
    """Returns ``1536`` bytes as ``1.5 KiB``."""
    amount, unit = float(size), "B"
    for unit in _SIZE_UNITS:
        if amount < 1024 or unit == _SIZE_UNITS[-1]:
            break
        amount /= 1024
    return f"{int(amount)} B" if unit == "B" else f"{amount:.1f} {unit}"


def readable_amount(slot: str, amount: Any, displays: SlotDisplays = _NO_DISPLAYS) -> str:
    """Formats an amount of a slot: bytes as ``256m``, as `-r` takes it, and other slots as their plugin says."""
    amount_text, number_format = str(amount), displays.get(slot, {}).get("number_format") or {}
    if not number_format.get("binary", slot in {"mem", "shmem"}):
        from decimal import Decimal, InvalidOperation

        digits = int(number_format.get("round_length") or 0)
        try:
            return f"{Decimal(amount_text):.{digits}f}" if digits else amount_text
        except InvalidOperation:
            return amount_text
    if not amount_text.isdigit():
        return amount_text
    size_bytes, size_units = int(amount_text), ["", "k", "m", "g", "t"]
    while size_bytes and size_bytes % 1024 == 0 and len(size_units) > 1:
        size_bytes //= 1024
        size_units.pop(0)
    return f"{size_bytes}{size_units[0]}" if len(str(size_bytes)) <= 5 else f"{int(amount_text) / 1024**3:.1f}g"


def unit_suffix(slot: str, displays: SlotDisplays) -> str:
    """Returns the unit of a slot with a blank in front, to be put behind an amount.

    It is an empty text where the amount contains its unit (``256m``).
    """
    display = displays.get(slot, {})
    unit = "" if (display.get("number_format") or {}).get("binary") else display.get("display_unit")
    return f" {format_cell(unit)}" if unit else ""


def describe_slots(slots: Mapping[str, Any] | None, displays: SlotDisplays = _NO_DISPLAYS) -> str:
    """Formats amounts of slots as one text, such as ``cpu=1, mem=256m, mock.device=1``.

    With displays it is ``cpu=1 Core, mem=256m, mock.shares=0.50 Share``.
    """
    return ", ".join(
        f"{slot}={readable_amount(slot, amount, displays)}{unit_suffix(slot, displays)}"
        for slot, amount in (slots or {}).items()
    )


def readable_metric(metric: Mapping[str, Any] | None) -> str:
    """Formats the current value of a metric with its unit.

    ``unit`` goes before ``unit_hint``, which may be wrong.
    """
    if metric is None:
        return "-"
    unit = str(metric.get("unit") or metric.get("unit_hint") or "count")
    try:
        value = float(metric["current"])
    except (KeyError, TypeError, ValueError):
        return format_cell(metric.get("current"))
    if unit in {"bytes", "bps"}:
        return readable_size(value) + ("/s" if unit == "bps" else "")
    return format_cell(f"{value:.4g}{_METRIC_UNITS.get(unit, f' {unit}')}")


def describe_metrics(metrics: Mapping[str, Any], *, prefix: str = "") -> str:
    """Formats the current values of metrics, and the capacity of those in bytes, as ``util 35%, mem 4g of 16g``.

    ``prefix`` is removed from the names.
    """
    metric_texts = []
    for key, metric in metrics.items():
        metric_text = readable_metric(metric)
        if metric.get("unit_hint") == "bytes" and metric.get("capacity"):
            metric_text += f" of {readable_size(metric['capacity'])}"
        metric_texts.append(f"{format_cell(key.removeprefix(prefix))} {metric_text}")
    return ", ".join(metric_texts)


def readable_time(text: str, *, timespec: str = "seconds") -> str:
    """Returns a time of the API as ``2026-11-21 09:33:27Z``; returns any other text unchanged."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(' ', timespec)}Z" if moment.tzinfo else text


def iso_time(seconds: Any) -> str:
    """Returns seconds since 1970 as a time of the API."""
    return datetime.fromtimestamp(float(seconds), UTC).isoformat()


def relative_time(value: Any, *, now: datetime | None = None) -> str:
    """Returns a time of the API as ``5m ago`` or ``in 2h``, and as a date when it is months away."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return format_cell(value)
    if moment.tzinfo is None:
        return format_cell(value)
    age_s = ((now or datetime.now(UTC)) - moment).total_seconds()
    distance_s = abs(int(age_s))
    if distance_s >= 60 * _DAY_S:
        return f"{moment.astimezone(UTC):%Y-%m-%d}"
    unit_limits = ((60, 1, "s"), (3600, 60, "m"), (2 * _DAY_S, 3600, "h"), (60 * _DAY_S, _DAY_S, "d"))
    duration_text = next(
        f"{distance_s // unit_s}{unit}" for limit_s, unit_s, unit in unit_limits if distance_s < limit_s
    )
    # The clock of the server may be a little ahead of ours.
    return f"in {duration_text}" if age_s < -5 else f"{duration_text} ago"
