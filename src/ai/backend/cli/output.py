"""What the command line prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NoReturn

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)")


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


def readable_amount(slot: str, amount: Any) -> str:
    """``268435456`` bytes of memory as ``256m``; other slots as they are."""
    text = str(amount)
    if slot not in {"mem", "shmem"} or not text.isdigit():
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


def describe_slots(slots: Mapping[str, Any]) -> str:
    """``cpu=1, mem=256m, mock.device=1``."""
    return ", ".join(f"{slot}={readable_amount(slot, amount)}" for slot, amount in slots.items())


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
    # Names and messages are what users wrote: a terminal must not obey them.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in " ".join(str(value).split()))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, separated by two spaces."""
    lines = [list(headers), *[list(row) for row in rows]]
    widths = [max(_width(line[index]) for line in lines) for index in range(len(headers))]

    def render(line: Sequence[str]) -> str:
        padded = [text + " " * (width - _width(text)) for text, width in zip(line, widths, strict=True)]
        return "  ".join(padded).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([render(lines[0]), rule, *[render(line) for line in lines[1:]]])


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
            print(text)

    def note(self, text: str) -> None:
        """What happens meanwhile, for people; never part of the result."""
        if not self.is_json:
            print(text, file=sys.stderr, flush=True)

    def table(self, items: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
        """A list of objects; ``columns`` pairs a key with its heading."""
        headings = [heading for _, heading in columns]
        print(table(headings, [[cell(item.get(key)) for key, _ in columns] for item in items]))

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """One object, a line for each of its facts."""
        known = [(name, value if isinstance(value, str) and "\n" in value else cell(value)) for name, value in pairs]
        width = max((_width(name) for name, _ in known), default=0)
        for name, value in known:
            print(f"{name}{' ' * (width - _width(name))}  {value}")

    def error(self, message: str, *, code: str = "error", status: int | None = None) -> None:
        """One line that says what is wrong and what to do; as a document too where JSON was asked for."""
        line = " ".join(message.split())
        print(f"backend.ai: {line}", file=sys.stderr, flush=True)
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
