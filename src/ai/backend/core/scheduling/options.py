"""What a resource group says about scheduling: ``scheduler`` and ``scheduler_opts``, read and judged.

The manager reads what is stored with :func:`read`, which never fails: what cannot be read counts as not said. Whoever
writes calls :func:`check` first. Source: peer facts, options of a resource group; ADR 0120 and 0123.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import isfinite
from typing import Any

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import SessionType
from ai.backend.core.scheduling.placing import PLACEMENTS
from ai.backend.core.scheduling.queues import ORDERS

DEFAULT_ORDER = "fifo"
DEFAULT_PLACEMENT = "dispersed"
HIGHEST_PRIORITY = 100
USUAL_PRIORITY = 10
_ORDER_SPELLINGS = {"fairshare": "fair-share"}
_PLACEMENT_SPELLINGS = {
    "roundrobin": "round-robin",
    "legacy": "dispersed",
    "fgd": "least-fragmentation",
}
VICTIM_ORDERS = ("newest", "oldest")
PREEMPTION_MODES = ("terminate", "reschedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Who makes way for sessions of larger priority.

    Attributes:
        enabled: whether anybody does.
        mode: ``terminate``: victims end for good, but for batch sessions that say ``restartable: true``.
            ``reschedule``: batch sessions wait again and start over, but for those that say ``restartable: false``.
        order: which of the victims of one priority go first.
        min_runtime_s: a session that has run for less than this is spared.
    """

    enabled: bool = False
    mode: str = "terminate"
    order: str = "newest"
    min_runtime_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """``scheduler_opts`` of a resource group, with the defaults for what it does not say.

    Attributes:
        allowed_session_types: which sessions may be created in the group.
        pending_timeout_s: sessions that wait for longer are cancelled; 0 for never.
        placement: ``agent_selection_strategy``: a key of :data:`PLACEMENTS` or the name of a placement plugin.
        preemption: see :class:`Preemption`.
        half_life_s: after this time use counts half in fair share.
        weights: scope (``domain``, ``domain/project``, ``domain/project/user``) -> its weight in fair share.
        max_priority: the largest priority that users may give to their sessions; administrators may give up to 100.
    """

    allowed_session_types: frozenset[SessionType] = frozenset(SessionType)
    pending_timeout_s: float = 0.0
    placement: str = DEFAULT_PLACEMENT
    preemption: Preemption = field(default_factory=Preemption)
    half_life_s: float = 7 * 86_400.0
    weights: Mapping[str, float] = field(default_factory=dict)
    max_priority: int = USUAL_PRIORITY


def order_name(name: object) -> str | None:
    """The key of :data:`ORDERS` that a ``scheduler`` means, in any of its spellings; None for none."""
    return _spelled(name, _ORDER_SPELLINGS, ORDERS)


def placement_name(name: object) -> str | None:
    """The key of :data:`PLACEMENTS` that a strategy means, in any of its spellings; None for none."""
    return _spelled(name, _PLACEMENT_SPELLINGS, PLACEMENTS)


def _spelled(name: object, spellings: Mapping[str, str], known: Collection[str]) -> str | None:
    plain = str(name).strip().lower().replace("_", "-")
    plain = spellings.get(plain, plain)
    return plain if plain in known else None


def check(scheduler: object, options: object, *, plugins: Collection[str] = ()) -> GroupOptions:
    """Judge what somebody wants to store as ``scheduler`` and ``scheduler_opts``; None stands for "not said".

    Args:
        plugins: names of installed placement plugins, which a strategy may be besides our own.

    Raises:
        InvalidInput: an unknown order, option or strategy, or a value that the option cannot have. The message names
            all of them and what would be right.
    """
    problems: list[str] = []
    if scheduler is not None and order_name(scheduler) is None:
        problems.append(f"unknown scheduler {_short(scheduler)}; known are {', '.join(ORDERS)}")
    if options is not None and not isinstance(options, Mapping):
        problems.append(f"scheduler_opts must be an object, not {_short(options)}")
        options = None
    found = _read(options or {}, problems, plugins)
    if problems:
        raise InvalidInput("; ".join(problems), data={"problems": problems})
    return found


def read(options: Mapping[str, Any]) -> GroupOptions:
    """What is stored, for use: each option that cannot be read has its default."""
    return _read(options, [], None)


Parser = Callable[[Any], Any]


def _read(options: Mapping[Any, Any], problems: list[str], plugins: Collection[str] | None) -> GroupOptions:
    """``plugins`` None: any name may be one."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _UNUSED:
            _try(name, value, _UNUSED[name], problems)
        elif name == "preemption":
            found["preemption"] = _preemption(value, problems)
        elif name == "agent_selection_strategy":
            _try_into(found, "placement", name, value, lambda v: _placement(v, plugins), problems)
        elif (option := _OPTIONS.get(name)) is not None:
            _try_into(found, option[0], name, value, option[1], problems)
        else:
            known = sorted({*_OPTIONS, *_UNUSED, "preemption", "agent_selection_strategy"})
            problems.append(_unknown("scheduler option", name, known))
    return GroupOptions(**found)


def _preemption(value: Any, problems: list[str]) -> Preemption:
    if not isinstance(value, Mapping):
        problems.append(f"preemption must be an object, not {_short(value)}")
        return Preemption()
    found: dict[str, Any] = {}
    for name, part in value.items():
        if name in _PREEMPTION:
            target, parser = _PREEMPTION[name]
            _try_into(found, target, f"preemption.{name}", part, parser, problems)
        else:
            problems.append(_unknown("option of preemption", name, sorted(_PREEMPTION)))
    return Preemption(**found)


def _try(name: str, value: Any, parser: Parser, problems: list[str]) -> Any:
    try:
        return parser(value)
    except ValueError as e:
        problems.append(f"{name} must be {e}, not {_short(value)}")
        return None


def _try_into(found: dict[str, Any], target: str, name: str, value: Any, parser: Parser, problems: list[str]) -> None:
    """None is "not said"; what cannot be read is a problem, and is left out."""
    if value is not None and (parsed := _try(name, value, parser, problems)) is not None:
        found[target] = parsed


def _unknown(what: str, name: object, known: list[str]) -> str:
    near = get_close_matches(str(name), known, n=1)
    return f"unknown {what} {_short(name)}; " + (
        f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    )


def _short(value: object) -> str:
    return f"{value!r:.60}"


# ---- values; each raises ValueError with what it must be


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(what)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(what) from None
    if not isfinite(number):
        raise ValueError(what)
    return number


def _seconds(value: Any) -> float:
    what = "a number of seconds, 0 or more"
    number = _number(value, what)
    if number < 0:
        raise ValueError(what)
    return number


def _positive(value: Any) -> float:
    what = "a positive number"
    number = _number(value, what)
    if number <= 0:
        raise ValueError(what)
    return number


def _priority(value: Any) -> int:
    what = f"a whole number from 0 to {HIGHEST_PRIORITY}"
    number = _number(value, what)
    if number != int(number) or not 0 <= number <= HIGHEST_PRIORITY:
        raise ValueError(what)
    return int(number)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _object(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("an object")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise ValueError("a list of texts")
    return list(value)


def _one_of(choices: Collection[str]) -> Parser:
    def parse(value: Any) -> str:
        plain = str(value).strip().lower()
        if plain not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return plain

    return parse


def _placement(value: Any, plugins: Collection[str] | None) -> str:
    found = placement_name(value)
    if found is None and isinstance(value, str) and value and (plugins is None or value in plugins):
        return value
    if found is None:
        raise ValueError(f"one of {', '.join([*PLACEMENTS, *sorted(plugins or ())])}")
    return found


def _session_types(value: Any) -> frozenset[SessionType]:
    what = f"a list with some of {', '.join(SessionType)}"
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(what)
    try:
        return frozenset(SessionType(str(v).lower()) for v in value)
    except ValueError:
        raise ValueError(what) from None


def _weights(value: Any) -> dict[str, float]:
    try:
        return {str(scope): _positive(weight) for scope, weight in _object(value).items()}
    except ValueError:
        raise ValueError("an object of scopes and positive numbers") from None


_OPTIONS: Mapping[str, tuple[str, Parser]] = {
    "allowed_session_types": ("allowed_session_types", _session_types),
    "pending_timeout": ("pending_timeout_s", _seconds),
    "half_life": ("half_life_s", _positive),
    "weights": ("weights", _weights),
    "max_priority": ("max_priority", _priority),
}
"""Option -> (attribute of :class:`GroupOptions`, how it is read)."""
_PREEMPTION: Mapping[str, tuple[str, Parser]] = {
    "enabled": ("enabled", _boolean),
    "mode": ("mode", _one_of(PREEMPTION_MODES)),
    "order": ("order", _one_of(VICTIM_ORDERS)),
    "min_runtime": ("min_runtime_s", _seconds),
}
_UNUSED: Mapping[str, Parser] = {
    "config": _object,
    "agent_selector_config": _object,
    "allow_fractional_resource_fragmentation": _boolean,
    "route_cleanup_target_statuses": _texts,
}
"""Options of the published system that are accepted and stored, and mean nothing to this scheduler."""
assert {name for name, _ in _OPTIONS.values()} | {"placement", "preemption"} == {f.name for f in fields(GroupOptions)}
