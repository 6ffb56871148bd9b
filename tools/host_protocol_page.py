"""The reference page of the protocol between an agent and the host of a plugin, with tables of its types."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from string import Template
from typing import Any, get_args, get_origin

import msgspec
from tools.plugin_types_page import _description

from ai.backend.plugin.accelerator import MANAGED_STATE_LIMIT, AbstractComputePlugin
from ai.backend.plugin.accelerator.shapes import (
    HOST_CALLS,
    MAX_FRAME,
    MAX_TEXT,
    PLUGIN_CALLS,
    POWER_CALLS,
    ResponseShape,
)
from ai.backend.pluginhost import process, protocol
from ai.backend.pluginhost.protocol import CALLS_FD, NOT_EXECUTED, PROTOCOL_VARIABLE, PROTOCOLS

_FRAMES = (
    protocol.Call,
    protocol.Cancel,
    protocol.Saved,
    protocol.Answer,
    protocol.Failure,
    protocol.Item,
    protocol.Save,
)
_ALWAYS = ("load", "make", "init", "cleanup", "hook")
_MEANINGS = {
    "load": "the first call: agree on a version, and describe the plugin",
    "make": "take the settings `plugins.<key>` of agent.toml; `invalid-api-params` for wrong ones",
    "init": "acquire what the plugin needs, and name its alloc map, which an executable must",
    "cleanup": "release what `init` acquired; the socket closes next",
    "hook": "one step of a workload's life: `pre_create` answers a WorkloadConfig, the others nil",
    "watch_health": "with the power `health_watching`: a stream of items, without a deadline",
}
_PROSE = Path(__file__).with_suffix(".md")
"""The text of the page, with names of :data:`_LIMITS` in ``${}``."""
_LIMITS = {
    "version": PROTOCOLS[-1],
    "calls_fd": CALLS_FD,
    "variable": PROTOCOL_VARIABLE,
    "not_executed": NOT_EXECUTED,
    "inherited": ", ".join(f"`{name}`" for name in process.INHERITED_VARIABLES),
    "lines_per_minute": process.LINES_PER_MINUTE,
    "max_line_length": process.MAX_LINE_LENGTH,
    "stop_s": f"{process.STOP_S:g}",
    "grace_s": f"{process.GRACE_S:g}",
    "max_timeouts": process.MAX_TIMEOUTS,
    "max_saves": process.MAX_SAVES,
    "max_stream_items": process.MAX_STREAM_ITEMS,
    "item_kib": process.MAX_ITEM_BYTES >> 10,
    "frame_mib": MAX_FRAME >> 20,
    "state_kib": MANAGED_STATE_LIMIT >> 10,
    "max_text": MAX_TEXT,
}


def page() -> str:
    """Return the page as Markdown."""
    prose = Template(_PROSE.read_text(encoding="utf-8")).substitute(_LIMITS)
    lines = [prose.rstrip(), "", "## Table of frames"]
    for frame in _FRAMES:
        lines += ["", f"### {frame.__name__}", "", *_description(frame), "", *_field_table(frame)]
    lines += ["", "## Table of methods", "", "Every executable answers these:", ""]
    always = {name: HOST_CALLS[name] for name in _ALWAYS}
    lines += _call_table({**always, **PLUGIN_CALLS})
    lines += ["", "Powers are named in `Hello.powers`, and set in `Hello.capabilities`. Their methods are:", ""]
    health = {"health_watching": {"watch_health": HOST_CALLS["watch_health"]}}
    lines += _power_table({**POWER_CALLS, **health})
    structures = _structures()
    lines += ["", "## Table of structures"]
    for name, item in sorted(structures.items()):
        lines += ["", f"### {name}", ""]
        if issubclass(item, enum.Enum):
            lines += ["One of " + ", ".join(f"`{member.value}`" for member in item) + "."]
        else:
            lines += [*_field_table(item)]
    return "\n".join(lines)


def _call_table(calls: Mapping[str, ResponseShape]) -> list[str]:
    meanings = {name: _MEANINGS.get(name) or _first_sentence(name) for name in calls}
    rows = [
        f"| `{name}` | {_arguments(shape)} | {_type_text(shape.result)} | {meanings[name]} |"
        for name, shape in calls.items()
    ]
    return ["| method | arguments | answer | meaning |", "|---|---|---|---|", *rows]


def _first_sentence(method: str) -> str:
    """Return the beginning of what the interface says of a method."""
    text = " ".join((inspect.getdoc(getattr(AbstractComputePlugin, method)) or "").split())
    return text.replace("``", "`").partition(". ")[0].rstrip(".")


def _power_table(powers: Mapping[str, Mapping[str, ResponseShape]]) -> list[str]:
    rows = [
        f"| `{power}` | `{name}` | {_arguments(shape)} | {_type_text(shape.result)} |"
        for power, calls in powers.items()
        for name, shape in calls.items()
    ]
    return ["| power | method | arguments | answer |", "|---|---|---|---|", *rows]


def _arguments(shape: ResponseShape) -> str:
    return ", ".join(_type_text(item) for item in get_args(shape.arguments)) or "none"


def _field_table(item: type) -> list[str]:
    hints = typing.get_type_hints(item)
    rows = [f"| `{name}` | {_type_text(hints[name])} | {default} |" for name, default in _fields(item)]
    return ["| field | type | default |", "|---|---|---|", *rows] if rows else ["No fields."]


def _fields(item: type) -> list[tuple[str, str]]:
    """Return the names of the fields in the order of the wire, and their defaults."""
    if dataclasses.is_dataclass(item):
        return [(field.name, _default_text(field.default, field.default_factory)) for field in dataclasses.fields(item)]
    return [(field.name, _default_text(field.default, field.default_factory)) for field in msgspec.structs.fields(item)]


def _default_text(default: Any, factory: Any) -> str:
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    if factory not in missing:
        default = factory()
    if default in missing:
        return "required"
    if isinstance(default, enum.Enum):
        return f"`{default.value}`"
    if isinstance(default, tuple | frozenset) and not default:
        return "empty"
    if default in (b"\x80", {}):
        return "an empty map"
    if default is None:
        return "nil"
    if isinstance(default, bool):
        return str(default).lower()
    return f"`{default}`" if str(default) else "empty"


def _type_text(hint: Any) -> str:
    if hint is None or hint is type(None):
        return "nil"
    if supertype := getattr(hint, "__supertype__", None):
        return "text" if supertype is str else "UUID"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_text(item) for item in arguments)
    if origin is typing.Literal:
        return " or ".join(f"`{item}`" for item in arguments)
    if origin in (tuple, frozenset):
        return f"list of {_type_text(arguments[0])}"
    if origin is not None and len(arguments) == 2:
        return f"map of {_type_text(arguments[0])} to {_type_text(arguments[1])}"
    if _is_structure(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    names = {str: "text", bytes: "bytes", int: "integer", bool: "boolean", float: "number", Decimal: "Decimal"}
    return names.get(hint, "any value" if hint is Any else str(getattr(hint, "__name__", hint)))


def _is_structure(hint: Any) -> bool:
    return isinstance(hint, type) and (
        dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct) or issubclass(hint, enum.Enum)
    )


def _structures() -> dict[str, type]:
    """Return every structure that a call carries, by name."""
    powers = [shape for calls in POWER_CALLS.values() for shape in calls.values()]
    hosted = [shape for name, shape in HOST_CALLS.items() if name != "create_alloc_map"]
    shapes = (*hosted, *PLUGIN_CALLS.values(), *powers)
    pending: list[Any] = [part for shape in shapes for part in (shape.arguments, shape.result)]
    pending += [typing.get_type_hints(frame) for frame in _FRAMES]
    reached: dict[str, type] = {}
    while pending:
        hint = pending.pop()
        if isinstance(hint, dict):
            pending += hint.values()
        pending += get_args(hint)
        if _is_structure(hint) and hint.__name__ not in reached:
            reached[hint.__name__] = hint
            if not issubclass(hint, enum.Enum):
                pending.append(typing.get_type_hints(hint))
    return reached
