"""What the command line prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from itertools import zip_longest
from typing import Any, NoReturn

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)")


_NARROWEST = 12
"""What a folded column has at least."""
_MOST_LINES = 4
"""What a folded cell has at most."""


class OutputMode(StrEnum):
    CONSOLE = "console"
    JSON = "json"


def _plain(value: Any) -> str:
    return str(value)


def decoded(value: Any) -> Any:
    """What a JSON-encoded string holds; anything else as it is."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


SlotDisplays = Mapping[str, Mapping[str, Any]]
"""Slot -> how its plugin wants quantities shown (``/config/resource-slots/details``)."""
_AS_THEY_ARE: SlotDisplays = {}


def readable_amount(slot: str, amount: Any, displays: SlotDisplays = _AS_THEY_ARE) -> str:
    """``268435456`` bytes of memory as ``256m``; other slots as their plugin wants it, or as they are."""
    text, shown = str(amount), displays.get(slot, {}).get("number_format") or {}
    if not shown.get("binary", slot in {"mem", "shmem"}):
        digits = int(shown.get("round_length") or 0)
        try:
            return f"{Decimal(text):.{digits}f}" if digits else text
        except InvalidOperation:
            return text
    if not text.isdigit():
        return text
    size, units = int(text), ["", "k", "m", "g", "t"]
    while size and size % 1024 == 0 and len(units) > 1:
        size //= 1024
        units.pop(0)
    return f"{size}{units[0]}" if len(str(size)) <= 5 else f"{int(text) / 1024**3:.1f}g"


def readable_time(text: str, *, timespec: str = "seconds") -> str:
    """A time of the API as ``2026-11-21 09:33:27Z``; anything else as it is."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{when.astimezone(UTC).replace(tzinfo=None).isoformat(' ', timespec)}Z" if when.tzinfo else text


def unit_of(slot: str, displays: SlotDisplays) -> str:
    """What is counted, after a space; nothing where the quantity carries its own (``256m``)."""
    shown = displays.get(slot, {})
    unit = "" if (shown.get("number_format") or {}).get("binary") else shown.get("display_unit")
    return f" {cell(unit)}" if unit else ""


def describe_slots(slots: Mapping[str, Any], displays: SlotDisplays = _AS_THEY_ARE) -> str:
    """``cpu=1, mem=256m, mock.device=1``; with displays ``cpu=1 Core, mem=256m, mock.shares=0.50 Share``."""
    return ", ".join(
        f"{slot}={readable_amount(slot, amount, displays)}{unit_of(slot, displays)}" for slot, amount in slots.items()
    )


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def cell(value: Any) -> str:
    """One value for a person's eyes."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} ({cell(item)})" if item and isinstance(item, Mapping) else f"{name}={cell(item)}"
            for name, item in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(cell(item) for item in value)
    if isinstance(value, str) and _TIME.fullmatch(value):
        return readable_time(value)
    return harmless(" ".join(str(value).split()))


def harmless(text: str) -> str:
    """Names and messages are what users, and vendors, wrote: a terminal must not obey them. Lines stay lines."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, room: int | None = None) -> str:
    """Columns as wide as their widest cell, separated by two spaces.

    Args:
        headers, rows: what to show.
        room: columns of the terminal; None: as many as are needed. The widest columns are folded until the table fits
            in; where they would become too narrow to read each row is a block, with a line for each of its cells.
    """
    lines = [list(headers), *[list(row) for row in rows]]
    widths = [max(_width(line[index]) for line in lines) for index in range(len(headers))]
    if room is not None and sum(widths) + 2 * len(widths) - 2 > room:
        widest = _widest(widths, room - 2 * len(widths) + 2)
        if widest < _NARROWEST:
            return "\n\n".join(facts(list(zip(headers, line, strict=True))) for line in lines[1:])
        widths = [min(width, widest) for width in widths]

    def render(line: Sequence[str]) -> str:
        folded = [_fold(text, width) for text, width in zip(line, widths, strict=True)]
        return "\n".join(
            "  ".join(padded(text, width) for text, width in zip(texts, widths, strict=True)).rstrip()
            for texts in zip_longest(*folded, fillvalue="")
        )

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([render(lines[0]), rule, *[render(line) for line in lines[1:]]])


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """One object, a line for each of its facts."""
    width = max((_width(name) for name, _ in pairs), default=0)
    return "\n".join(f"{padded(name, width)}  {value}" for name, value in pairs)


def padded(text: str, width: int) -> str:
    """Text with blanks up to a width."""
    return text + " " * (width - _width(text))


def _widest(widths: Sequence[int], room: int) -> int:
    """How wide the widest columns may be so that all fit in."""
    left = sorted(widths)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return room // len(left) if left else room


def _fold(text: str, width: int) -> list[str]:
    """A cell's lines, at most :data:`_MOST_LINES`; broken at blanks where there are some."""
    lines: list[str] = []
    while _width(text) > width:
        if len(lines) == _MOST_LINES - 1:
            return [*lines, _first(text, width - 1) + "…"]
        head = _first(text, width)
        if " " in head and not text[len(head) :].startswith(" "):
            head = head[: head.rindex(" ")]
        lines.append(head.rstrip())
        text = text[len(head) :].lstrip()
    return [*lines, text]


def _first(text: str, width: int) -> str:
    """As many first characters as fit in, at least one."""
    end = max(1, min(len(text), width))
    while end > 1 and _width(text[:end]) > width:
        end -= 1
    return text[:end]


class Screen:
    """The output of one invocation in the mode that was asked for."""

    def __init__(self, mode: OutputMode = OutputMode.CONSOLE) -> None:
        self.mode = mode

    @property
    def is_quiet(self) -> bool:
        """Whether notes go nowhere, so that nobody need prepare them."""
        return self.is_json

    @property
    def is_json(self) -> bool:
        return self.mode is OutputMode.JSON

    def json(self, value: Any) -> None:
        """The one JSON document of this invocation."""
        print(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))

    def say(self, text: str) -> None:
        """A result line; people only."""
        if not self.is_json:
            print(harmless(text))

    def note(self, text: str) -> None:
        """What happens meanwhile, for people; never part of the result."""
        if not self.is_json:
            print(harmless(text), file=sys.stderr, flush=True)

    def table(self, items: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
        """A list of objects; ``columns`` pairs a key with its heading."""
        headings = [heading for _, heading in columns]
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(table(headings, [[cell(item.get(key)) for key, _ in columns] for item in items], room=room))

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """One object, a line for each of its facts."""
        known = [
            (name, harmless(value) if isinstance(value, str) and "\n" in value else cell(value))
            for name, value in pairs
        ]
        if known:
            print(facts(known))

    def error(self, message: str, *, code: str = "error", status: int | None = None) -> None:
        """One line that says what is wrong and what to do; as a document too where JSON was asked for."""
        line = " ".join(message.split())
        print(f"backend.ai: {harmless(line)}", file=sys.stderr, flush=True)
        if self.is_json:
            self.json({"error": {"code": code, "message": line, **({"status": status} if status else {})}})

    def fail(self, message: str, *, exit_code: int = 1) -> NoReturn:
        self.error(message)
        sys.exit(exit_code)


class MutedScreen(Screen):
    """A screen that shows results and errors only."""

    @property
    def is_quiet(self) -> bool:
        return True

    def note(self, text: str) -> None:
        pass
