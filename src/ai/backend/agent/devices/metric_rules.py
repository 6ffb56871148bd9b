"""Taints or cordons devices by rules over their metrics, and removes the taint or cordon when the device recovers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.agent.config.settings import DeviceRuleSettings
from ai.backend.agent.devices.inventory import INTRINSIC, Inventory
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import DeviceId
from ai.backend.core.allocation.requests.attributes import attributes_of
from ai.backend.core.allocation.requests.compiled import DeviceRequest, RequestCompiler
from ai.backend.core.allocation.requests.terms import Attributes, Value

log = logging.getLogger(__name__)
MAX_EVALUATIONS = 65_536
"""The largest number of expressions that one round of measurements evaluates. Devices beyond it are left out, which is
logged.
"""
_METRIC, _RATE = "metric", "rate"
Key = tuple[str, str, DeviceId]
"""A rule, a plugin and a device."""


class Reading(msgspec.Struct, frozen=True):
    """Holds the present value of a device's metric, and its growth per second."""

    value: float
    rate: float


class _Rule(msgspec.Struct, frozen=True):
    settings: DeviceRuleSettings
    when: DeviceRequest
    until: DeviceRequest | None


class MetricRules:
    """Evaluates the rules of the settings on each round of measurements, and sets and removes cordons and taints
    accordingly. See :meth:`observe` and :meth:`apply`.

    A rule is in force for a device while the cordon or taint that it has set exists. ``when`` sets it after
    ``seconds``; ``until``, or the end of ``when``, removes it after ``recovery`` seconds. A metric that is missing
    satisfies neither. What an operator has set is not touched.
    """

    def __init__(
        self,
        settings: Sequence[DeviceRuleSettings],
        inventory: Inventory,
        operations: DeviceOperations,
        *,
        clock: Callable[[], float],
    ) -> None:
        compiler = RequestCompiler()
        self._rules = [
            _Rule(rule, compiler.compile(rule.when), compiler.compile(rule.until) if rule.until is not None else None)
            for rule in settings
        ]
        self._inventory = inventory
        self._operations = operations
        self._clock = clock
        self._since: dict[Key, float] = {}
        """Since when a device satisfies ``when`` of a rule that is not in force, or satisfies the recovery of one in
        force.
        """
        self._due: dict[Key, str] = {}
        self._is_over_limit = False

    def observe(self, plugin_key: str, readings: Mapping[DeviceId, Mapping[str, Reading]]) -> None:
        """Evaluates the rules for the accelerators that a plugin has just measured."""
        rules = [rule for rule in self._rules if rule.settings.plugin in ("", plugin_key)]
        kind = self._inventory.kinds.get(plugin_key)
        if not rules or kind is None or plugin_key in INTRINSIC:
            return
        measured_devices = [device for device in kind.devices_with_health if device.device_id in readings]
        evaluated_devices = measured_devices[: MAX_EVALUATIONS // len(rules)]
        if (is_over_limit := len(evaluated_devices) < len(measured_devices)) and not self._is_over_limit:
            log.error(
                "rules are evaluated for %d of %d devices of %s",
                len(evaluated_devices),
                len(measured_devices),
                plugin_key,
            )
        self._is_over_limit = is_over_limit
        for device in evaluated_devices:
            device_facts = {**attributes_of(device), **_facts_of_readings(readings[device.device_id])}
            for rule in rules:
                self._evaluate(rule, (rule.settings.name, plugin_key, device.device_id), device_facts)
        evaluated_ids = {device.device_id for device in evaluated_devices}
        for key in [key for key in self._since if key[1] == plugin_key and key[2] not in evaluated_ids]:
            del self._since[key]

    def _evaluate(self, rule: _Rule, key: Key, device_facts: Attributes) -> None:
        name, plugin_key, device_id = key
        is_in_force = self._operations.rule_of(plugin_key, device_id) == name
        lasting_s = rule.settings.recovery if is_in_force else rule.settings.seconds
        if not is_in_force:
            is_condition_met = rule.when.selects(device_facts)
        elif rule.until is not None:
            is_condition_met = rule.until.selects(device_facts)
        else:
            is_condition_met = rule.when.term is not None and rule.when.term.value_for(device_facts) is False
        if not is_condition_met:
            self._since.pop(key, None)
            self._due.pop(key, None)
            return
        now = self._clock()
        if now - self._since.setdefault(key, now) >= lasting_s:
            self._due[key] = "" if is_in_force else _describe(rule, device_facts)

    async def apply(self) -> None:
        """Sets and removes the cordons and taints that :meth:`observe` found due. A failed change is tried again at the
        next round of measurements.
        """
        due_changes, self._due = self._due, {}
        settings_by_name = {rule.settings.name: rule.settings for rule in self._rules}
        for key, reason in due_changes.items():
            name, plugin_key, device_id = key
            self._since.pop(key, None)
            rule = settings_by_name[name]
            try:
                if not reason:
                    if await self._operations.uncordon_by_rule(plugin_key, device_id, name):
                        log.warning("the device %s of %s has recovered from the rule %s", device_id, plugin_key, name)
                elif await self._operations.cordon_by_rule(
                    plugin_key, device_id, name, reason, rule.duration, taint=rule.taint
                ):
                    log.warning("the device %s of %s: %s", device_id, plugin_key, reason)
            except (BackendError, OSError) as e:
                log.warning("the rule %s is not applied to the device %s of %s: %s", name, device_id, plugin_key, e)


def _facts_of_readings(readings: Mapping[str, Reading]) -> dict[str, tuple[Value, ...]]:
    device_facts: dict[str, tuple[Value, ...]] = {}
    for name, reading in readings.items():
        for fact_prefix, value in ((_METRIC, reading.value), (_RATE, reading.rate)):
            if math.isfinite(value):
                device_facts[f"{fact_prefix}.{name}"] = (Decimal(repr(value)),)
    return device_facts


def _describe(rule: _Rule, device_facts: Attributes) -> str:
    """Returns the rule's name, its condition and the values behind it, for people."""
    values = [
        f"{name} is {float(device_facts[name][0]):g}"
        for name in sorted(device_facts)
        if name.startswith((f"{_METRIC}.", f"{_RATE}.")) and name in rule.settings.when
    ]
    duration_text = f" for {rule.settings.seconds:g} s" if rule.settings.seconds else ""
    return f"rule {rule.settings.name}: {rule.settings.when}{duration_text} ({', '.join(values[:4])})"
