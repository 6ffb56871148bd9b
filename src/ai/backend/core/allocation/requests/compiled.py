"""Compiles device requests into functions that select devices, and sets of devices that may be given together.

What devices must be to each other is a relation of pairs, so what may be given together are the cliques of a graph. A
request is served from one of its maximal cliques (:attr:`Selection.sets`); ``distinct`` is the exception, because a
graph in which only alike devices are apart has too many: of each group of alike ones the device with most free may be
given. Source: decision 0359.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

import msgspec

from ai.backend.common.devices import ComputeDevice, LinkKind
from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import DeviceId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.requests import syntax
from ai.backend.core.allocation.requests.terms import (
    Alike,
    AllOf,
    Amount,
    AnyOf,
    Attributes,
    Constraint,
    LinkBandwidth,
    LinkKinds,
    Term,
    Tolerates,
)
from ai.backend.core.allocation.slot_pool import ranks

MAX_ALTERNATIVES = 8
_MAX_COMPILED = 4096
MAX_SETS = 1024
"""Limits the number of maximal sets of linked devices that are tried. Further sets are ignored."""


class Selection(msgspec.Struct, frozen=True):
    """Holds the devices of one plugin that a request selects.

    Attributes:
        devices: all of them.
        sets: those that may be given together; None if any may.
        groups: of each group at most one device may be given; None if any may.
        text: the constraints, for messages.
        preferred: growing sets of devices to try before all of them.
    """

    devices: frozenset[DeviceId]
    sets: tuple[frozenset[DeviceId], ...] | None = None
    groups: tuple[frozenset[DeviceId], ...] | None = None
    text: str = ""
    preferred: tuple[frozenset[DeviceId], ...] = ()

    @property
    def allows_any(self) -> bool:
        """Returns True if the devices may be given together in any combination."""
        return self.sets is None and self.groups is None

    def allows(self, device_ids: frozenset[DeviceId]) -> bool:
        """Returns True if exactly the given devices may be given together."""
        return (
            device_ids <= self.devices
            and (self.sets is None or any(device_ids <= device_set for device_set in self.sets))
            and (self.groups is None or all(len(device_ids & group) <= 1 for group in self.groups))
        )

    def candidates(self, free_of: Callable[[DeviceId], int]) -> list[frozenset[DeviceId]]:
        """Returns the sets of devices that an allocation may be taken from, in the order of trial.

        Sets with the least free come first, so that large sets stay whole.
        """
        sets = self.sets if self.sets is not None else (self.devices,)
        if self.groups is not None:
            sets = tuple(
                frozenset(
                    max(sorted(members), key=lambda device_id: (free_of(device_id), device_id))
                    for group in self.groups
                    if (members := group & device_set)
                )
                for device_set in sets
            )
        if len(sets) == 1:
            return list(sets)
        return sorted(sets, key=lambda members: (sum(map(free_of, members)), sorted(members)))


@dataclass(frozen=True, eq=False)
class DeviceRequest:
    """Represents a request for the devices behind the slots of a session. Equal requests have the same ``text``."""

    text: str
    term: Term | None
    constraints: tuple[Constraint, ...]
    tolerated: frozenset[str] = frozenset()
    """Lists the keys of the taints that the selected devices may have."""
    amounts: ResourceSlot = field(default_factory=ResourceSlot)
    """Holds the accelerator slots that a kernel takes if this alternative is chosen. See :mod:`.amounts`."""
    wording: str = ""
    """Holds the text of the request without the amounts."""

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceRequest) and self.text == other.text

    def __str__(self) -> str:
        return self.wording or "any device"

    @cached_property
    def conditions(self) -> tuple[Term, ...]:
        """Returns the terms that a device must satisfy. Each device is checked by itself."""
        if self.term is None:
            return ()
        return self.term.terms if isinstance(self.term, AllOf) else (self.term,)

    def selects(self, attributes: Attributes) -> bool:
        """Returns True if a device with these attributes may be given."""
        return (self.term is None or self.term.value_for(attributes) is True) and all(
            attributes.get(constraint.name) for constraint in self.constraints if isinstance(constraint, Alike)
        )

    def select(self, devices: Sequence[ComputeDevice], attributes: Sequence[Attributes]) -> Selection:
        """Selects from the devices of one plugin. ``attributes``: their attributes."""
        selected_devices = [
            (device, device_attributes)
            for device, device_attributes in zip(devices, attributes, strict=True)
            if self.selects(device_attributes)
        ]
        device_ids = frozenset(device.device_id for device, _ in selected_devices)
        if not self.constraints:
            return Selection(device_ids)
        same_names = [
            constraint.name
            for constraint in self.constraints
            if isinstance(constraint, Alike) and not constraint.is_distinct
        ]
        distinct_names = [
            constraint.name
            for constraint in self.constraints
            if isinstance(constraint, Alike) and constraint.is_distinct
        ]
        device_sets: list[frozenset[DeviceId]] | None = None
        if same_names or len(self.constraints) > len(distinct_names):
            alike_groups = _group_by(selected_devices, same_names)
            link_rules = [
                constraint for constraint in self.constraints if isinstance(constraint, LinkBandwidth | LinkKinds)
            ]
            device_sets = []
            for members in alike_groups:
                device_sets += _linked_sets(members, link_rules) if link_rules else [_device_ids(members)]
        groups = tuple(map(_device_ids, _group_by(selected_devices, distinct_names))) if distinct_names else None
        constraints_text = " && ".join(map(str, self.constraints))
        return Selection(device_ids, None if device_sets is None else tuple(device_sets), groups, constraints_text)


_SelectedDevices = list[tuple[ComputeDevice, Attributes]]


def _device_ids(devices: _SelectedDevices) -> frozenset[DeviceId]:
    return frozenset(device.device_id for device, _ in devices)


def _group_by(devices: _SelectedDevices, names: Sequence[str]) -> list[_SelectedDevices]:
    groups: dict[tuple[object, ...], _SelectedDevices] = {}
    for device, attributes in devices:
        groups.setdefault(tuple(attributes[name] for name in names), []).append((device, attributes))
    return list(groups.values())


def _linked_sets(
    selected_devices: _SelectedDevices, rules: Sequence[LinkBandwidth | LinkKinds]
) -> list[frozenset[DeviceId]]:
    """Returns the maximal sets of devices in which each pair is linked as all link rules demand."""
    rank_of_id = {device.device_id: rank for rank, (device, _) in enumerate(selected_devices)}
    neighbour_masks = [0] * len(selected_devices)
    stated_links: dict[tuple[int, int], list[tuple[LinkKind, float]]] = {}
    for rank, (device, _) in enumerate(selected_devices):
        for link in device.links:
            peer_rank = rank_of_id.get(link.peer, rank)
            if peer_rank != rank:
                pair = min(rank, peer_rank), max(rank, peer_rank)
                stated_links.setdefault(pair, []).append((link.kind, link.bandwidth_gib_s or 0.0))
    for (first_rank, second_rank), links in stated_links.items():
        if all(any(_satisfies_rule(kind, bandwidth, rule) for kind, bandwidth in links) for rule in rules):
            neighbour_masks[first_rank] |= 1 << second_rank
            neighbour_masks[second_rank] |= 1 << first_rank
    device_ids = [device.device_id for device, _ in selected_devices]
    return [frozenset(device_ids[rank] for rank in ranks(mask)) for mask in _maximal_cliques(neighbour_masks)]


def _satisfies_rule(kind: LinkKind, bandwidth: float, rule: LinkBandwidth | LinkKinds) -> bool:
    return bandwidth >= rule.least if isinstance(rule, LinkBandwidth) else kind.value in rule.kinds


def _maximal_cliques(neighbour_masks: Sequence[int]) -> list[int]:
    """Returns the maximal cliques as masks, at most :data:`MAX_SETS` (Bron and Kerbosch, with the pivot of Tomita)."""
    clique_masks: list[int] = []
    stack = [(0, (1 << len(neighbour_masks)) - 1, 0)]
    while stack and len(clique_masks) < MAX_SETS:
        clique_mask, candidate_mask, excluded_mask = stack.pop()
        if not candidate_mask:
            if not excluded_mask and clique_mask:
                clique_masks.append(clique_mask)
            continue
        pivot = max(
            ranks(candidate_mask | excluded_mask), key=lambda rank: (candidate_mask & neighbour_masks[rank]).bit_count()
        )
        for rank in ranks(candidate_mask & ~neighbour_masks[pivot]):
            bit = 1 << rank
            stack.append(
                (clique_mask | bit, candidate_mask & neighbour_masks[rank], excluded_mask & neighbour_masks[rank])
            )
            candidate_mask &= ~bit
            excluded_mask |= bit
    return clique_masks


class RequestCompiler:
    """Compiles the texts of device requests and caches the results. Its first request costs 0.1 s."""

    def __init__(self) -> None:
        self._parser: syntax.RequestParser | None = None
        self._compiled: dict[str, DeviceRequest] = {}

    def compile(self, text: str) -> DeviceRequest:
        """Compiles one request. Raises InvalidInput with the column."""
        compiled = self._compiled.get(text)
        if compiled is None:
            if self._parser is None:
                self._parser = syntax.RequestParser()
            if len(self._compiled) >= _MAX_COMPILED:
                self._compiled.clear()
            compiled = self._compiled[text] = _make_request(*self._parser.parse(text))
        return compiled

    def check(self, texts: Sequence[str], field: str) -> tuple[str, ...]:
        """Returns the alternatives in the form in which they are stored, without duplicates.

        Raises InvalidInput that names the field, the alternative and the column, for one that cannot be read and for
        too many.
        """
        if len(texts) > MAX_ALTERNATIVES:
            message = f"there are {MAX_ALTERNATIVES} alternative device requests at most"
            raise InvalidInput(message, data={field: "too many"})
        for position, text in enumerate(texts, 1):
            try:
                self.compile(text)
            except InvalidInput as e:
                message = f"alternative {position}: {e.message}" if len(texts) > 1 else e.message
                raise InvalidInput(message, data={field: message, "column": e.data["column"]}) from None
        return tuple(dict.fromkeys(text.strip() for text in texts))


def _make_request(term: Term | None, constraints: tuple[Constraint, ...]) -> DeviceRequest:
    if sum(isinstance(constraint, Alike) and constraint.is_distinct for constraint in constraints) > 1:
        raise InvalidInput("a device request has at most one distinct()", data={"column": 1})
    amounts: dict[str, Decimal] = {}
    for amount in (constraint for constraint in constraints if isinstance(constraint, Amount)):
        if amount.slot in amounts:
            raise InvalidInput(f"a device request has two amounts of {amount.slot}", data={"column": 1})
        amounts[amount.slot] = amount.quantity
    tolerated_keys = frozenset(constraint.key for constraint in constraints if isinstance(constraint, Tolerates))
    other_constraints = tuple(
        constraint for constraint in constraints if not isinstance(constraint, Tolerates | Amount)
    )
    wording = _format_request(term, [constraint for constraint in constraints if not isinstance(constraint, Amount)])
    return DeviceRequest(
        _format_request(term, constraints), term, other_constraints, tolerated_keys, ResourceSlot(amounts), wording
    )


def _format_request(term: Term | None, constraints: Sequence[Constraint]) -> str:
    texts = list(map(str, constraints))
    if term is not None:
        texts.insert(0, f"({term})" if texts and isinstance(term, AnyOf) else str(term))
    return " && ".join(texts)


def check_condition(text: str) -> None:
    """Raises ValueError for an expression that cannot be parsed, or that describes more than a single device."""
    try:
        request = RequestCompiler().compile(text)
    except InvalidInput as e:
        raise ValueError(e.message) from None
    if request.term is None or request.constraints or request.tolerated or request.amounts:
        raise ValueError("it judges one device: constraints, amounts and tolerations have no place in it")
