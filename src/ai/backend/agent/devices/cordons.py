"""Keeps the devices that an operator has taken out of scheduling, with the reason and the end (decision 0353)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from ai.backend.common.ids import DeviceId

log = logging.getLogger(__name__)
Key = tuple[str, DeviceId]
"""The plugin and the device."""


class NamedValueStore(Protocol):
    """Stores values by names, durably. A method that raises OSError has changed nothing."""

    def items(self) -> dict[str, bytes]: ...
    def put(self, key: str, value: bytes) -> None: ...
    def delete(self, key: str) -> None: ...


class Cordon(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a cordon or a taint of a device.

    A cordoned device takes no new workloads. With a ``taint`` the device takes only workloads that tolerate this key.
    ``until`` is Unix time; None: until somebody uncordons the device. ``rule``: the rule that has set the cordon;
    empty: an operator has.
    """

    device_name: str
    device_id: str
    reason: str
    until: float | None = None
    taint: str = ""
    rule: str = ""

    @property
    def description(self) -> str:
        """The text that the heartbeat gives as the reason why the device is unhealthy."""
        kind = f"tainted {self.taint}" if self.taint else "cordoned"
        if self.until is None:
            return f"{kind}: {self.reason}"
        end = datetime.fromtimestamp(self.until, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
        return f"{kind} until {end}Z: {self.reason}"


class Cordons:
    """Stores cordons over restarts of the agent. Every method that changes them raises OSError."""

    def __init__(self, store: NamedValueStore, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._cordons: dict[Key, Cordon] = {}
        for name, value in store.items().items():
            try:
                cordon = msgspec.json.decode(value, type=Cordon)
            except (msgspec.MsgspecError, UnicodeDecodeError) as e:
                log.error("the cordon %s cannot be read: %s", name, e)
                continue
            self._cordons[cordon.device_name, DeviceId(cordon.device_id)] = cordon

    def descriptions(self) -> Mapping[Key, str]:
        """Returns the reason of each cordon and of each taint, by plugin and device."""
        return {key: cordon.description for key, cordon in self._cordons.items()}

    def reasons(self) -> Mapping[Key, str]:
        """Returns the reason of each cordon, without the taints, by plugin and device."""
        return {key: cordon.description for key, cordon in self._cordons.items() if not cordon.taint}

    def taints(self) -> Mapping[Key, str]:
        """Returns the key of each tainted device."""
        return {key: cordon.taint for key, cordon in self._cordons.items() if cordon.taint}

    def rule_of(self, device_name: str, device_id: DeviceId) -> str | None:
        """Returns the name of the rule that has cordoned or tainted a device, or an empty text if an operator has.

        Returns None if the device has neither a cordon nor a taint.
        """
        cordon = self._cordons.get((device_name, device_id))
        return None if cordon is None else cordon.rule

    def put(
        self,
        device_name: str,
        device_id: DeviceId,
        reason: str,
        expires_after_s: float | None,
        *,
        taint: str = "",
        rule: str = "",
    ) -> None:
        """Cordons or taints a device, in place of an earlier cordon or taint."""
        expires_at = None if expires_after_s is None else self._wall_clock() + expires_after_s
        cordon = Cordon(
            device_name=device_name,
            device_id=device_id,
            reason=" ".join(reason.split()),
            until=expires_at,
            taint=taint,
            rule=rule,
        )
        self._store.put(_name_of((device_name, device_id)), msgspec.json.encode(cordon))
        self._cordons[device_name, device_id] = cordon

    def remove(self, device_name: str, device_id: DeviceId) -> bool:
        """Removes a cordon; returns False if there is none."""
        key = (device_name, device_id)
        if key not in self._cordons:
            return False
        self._store.delete(_name_of(key))
        del self._cordons[key]
        return True

    def expire(self) -> bool:
        """Removes the cordons whose time is over. Returns True if there were any."""
        now = self._wall_clock()
        expired = [key for key, cordon in self._cordons.items() if cordon.until is not None and cordon.until <= now]
        for key in expired:
            self.remove(*key)
            log.info("the cordon of the device %s of %s has ended", key[1], key[0])
        return bool(expired)


def _name_of(key: Key) -> str:
    return msgspec.json.encode(list(key)).decode()
