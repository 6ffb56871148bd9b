"""Reads and checks the scheduling options of a resource group: ``scheduler`` and ``scheduler_opts``.

The manager reads what is stored with :func:`read`, which never fails: an option that cannot be read has its default.
Whoever writes calls :func:`check` first. Source: peer facts, options of a resource group; ADR 0120 and 0123.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import SessionType
from ai.backend.common.structs import replace
from ai.backend.common.validation_messages import split_message
from ai.backend.core.scheduling.ordering.queue import ORDERS
from ai.backend.core.scheduling.placement.strategies import PLACEMENTS

DEFAULT_ORDER = "fifo"
DEFAULT_PLACEMENT = "dispersed"
USUAL_PRIORITY = 10
_SPELLINGS = {
    "fairshare": "fair-share",
    "roundrobin": "round-robin",
    "legacy": "dispersed",
    "fgd": "least-fragmentation",
}
_MAX_NUMBER = 1e12
Seconds = Annotated[float, Meta(ge=0, le=_MAX_NUMBER)]
Positive = Annotated[float, Meta(gt=0, le=_MAX_NUMBER)]


class Preemption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects which sessions may be preempted by sessions of larger priority.

    Attributes:
        enabled: whether any do.
        mode: ``terminate``: victims end for good, but for batch sessions that say ``restartable: true``.
            ``reschedule``: batch sessions wait again and start over, but for those that say ``restartable: false``.
        order: which of the victims of one priority go first.
        min_runtime_s: a session that has run for less than this is spared.
    """

    enabled: bool = False
    mode: Literal["terminate", "reschedule"] = "terminate"
    order: Literal["newest", "oldest"] = "newest"
    min_runtime_s: Seconds = field(default=0.0, name="min_runtime")


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the ``scheduler_opts`` of a resource group.

    Attributes:
        allowed_session_types: which sessions may be created in the group.
        pending_timeout_s: sessions that wait for longer are cancelled; 0 for never.
        placement: ``agent_selection_strategy``: a key of :data:`PLACEMENTS` or the name of a placement plugin.
        preemption: see :class:`Preemption`.
        half_life_s: after this time use counts half in fair share.
        weights: scope (``domain``, ``domain/project``, ``domain/project/user``) -> its weight in fair share.
        max_priority: the largest priority that users may give to their sessions; administrators may give up to 100.
        config: like the three below, an option of the published system that is stored and has no effect here.
    """

    allowed_session_types: Annotated[frozenset[SessionType], Meta(min_length=1)] = frozenset(SessionType)
    pending_timeout_s: Seconds = field(default=0.0, name="pending_timeout")
    placement: Annotated[str, Meta(min_length=1)] = field(default=DEFAULT_PLACEMENT, name="agent_selection_strategy")
    preemption: Preemption = Preemption()
    half_life_s: Positive = field(default=7 * 86_400.0, name="half_life")
    weights: dict[str, Positive] = {}
    max_priority: Annotated[int, Meta(ge=0, le=100)] = USUAL_PRIORITY
    config: dict[str, Any] = {}
    agent_selector_config: dict[str, Any] = {}
    allow_fractional_resource_fragmentation: bool = True
    route_cleanup_target_statuses: list[str] = []


def order_name(name: object) -> str | None:
    """Returns the key of :data:`ORDERS` for any spelling of ``scheduler``; None if unknown."""
    return _find_spelling(name, ORDERS)


def placement_name(name: object) -> str | None:
    """Returns the key of :data:`PLACEMENTS` for any spelling of a strategy; None if unknown."""
    return _find_spelling(name, PLACEMENTS)


def _find_spelling(name: object, keys: Collection[str]) -> str | None:
    plain_name = str(name).strip().lower().replace("_", "-")
    plain_name = _SPELLINGS.get(plain_name, plain_name)
    return plain_name if plain_name in keys else None


def check(scheduler: object, options: object, *, plugins: Collection[str] = ()) -> GroupOptions:
    """Checks new values of ``scheduler`` and ``scheduler_opts``, and returns the options.

    None means no value. ``plugins``: known placements and orders of plugins.

    Raises InvalidInput for an unknown order, option or strategy, or an invalid value; the message names all of them,
    the data the fields.
    """
    problems: list[str] = []
    if scheduler is not None and order_name(scheduler) is None and scheduler not in plugins:
        problems.append(f"scheduler: unknown {scheduler!r:.60}; known are {', '.join(ORDERS)}")
    if options is not None and not isinstance(options, Mapping):
        problems.append("scheduler_opts: Expected `object`")
        options = None
    group_options, problem_texts = _decode(options or {})
    problems += problem_texts
    if group_options.placement not in PLACEMENTS and group_options.placement not in plugins:
        all_names = ", ".join([*PLACEMENTS, *sorted(plugins)])
        problems.append(f"scheduler_opts.agent_selection_strategy: Expected one of {all_names}")
    if problems:
        names = ("scheduler_opts" if text.startswith("scheduler_opts") else "scheduler" for text in problems)
        raise InvalidInput("; ".join(problems), data={**dict.fromkeys(names, "malformed"), "problems": problems})
    return group_options


def read(options: Mapping[str, Any]) -> GroupOptions:
    """Reads stored options. An unreadable option gets its default."""
    return _decode(options)[0]


def _decode(options: Mapping[str, Any]) -> tuple[GroupOptions, list[str]]:
    """Returns the options that could be read, and the problems of the other options. None means no value."""
    accepted_options: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in options.items():
        if value is None:
            continue
        try:
            msgspec.convert({name: value}, GroupOptions, strict=False)
        except msgspec.ValidationError as e:
            key_path, problem = split_message(e, GroupOptions)
            problems.append(f"scheduler_opts{key_path}: {problem}")
        else:
            accepted_options[name] = value
    group_options = msgspec.convert(accepted_options, GroupOptions, strict=False)
    return replace(
        group_options, placement=placement_name(group_options.placement) or group_options.placement
    ), problems
