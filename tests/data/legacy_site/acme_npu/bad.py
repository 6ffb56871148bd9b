# mypy: ignore-errors
"""The plugin with one method replaced, as its setting ``fault`` says: ``METHOD=ANSWER``."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from acme_npu.plugin import AcmeDevice, AcmePlugin
from ai.backend.agent.resources import DeviceSlotInfo, DiscretePropertyAllocMap
from ai.backend.common.types import DeviceName, SlotName, SlotTypes

SLOT = SlotName("acme.device")


def _device(device_id: Any, memory: Any = 1) -> AcmeDevice:
    return AcmeDevice("N1", 0, device_id=device_id, hw_location="", memory_size=memory, processing_units=1)


def _map(amount: Any, *names: str, kind: SlotTypes = SlotTypes.COUNT) -> DiscretePropertyAllocMap:
    return DiscretePropertyAllocMap(device_slots={name: DeviceSlotInfo(kind, SLOT, amount) for name in names})


ANSWERS = {
    "none": lambda: None,
    "number": lambda: 7,
    "text": lambda: "text",
    "ints": lambda: {SLOT: 2},
    "whole-float": lambda: {SLOT: 2.0},
    "float": lambda: {SLOT: 1.7},
    "nan": lambda: {SLOT: Decimal("NaN")},
    "lie": lambda: {SLOT: Decimal(64)},
    "int-ids": lambda: [_device(0), _device(1)],
    "float-memory": lambda: [_device("ACME-0", 1.5), _device("ACME-1")],
    "twice": lambda: [_device("ACME-0")] * 2,
    "numbers": lambda: [1, 2],
    "one-device": lambda: [_device("ACME-0")],
    "float-map": lambda: _map(0.5, "ACME-0", "ACME-1"),
    "int-map": lambda: _map(1, "ACME-0", "ACME-1"),
    "unified-map": lambda: _map(Decimal(1), "ACME-0", "ACME-1", kind=SlotTypes.UNIFIED),
    "bad-mount": lambda: ["/etc/acme.conf"],
    "nothing": list,
    "gids-as-text": lambda: ["video"],
}


class AcmeBadPlugin(AcmePlugin):
    key = DeviceName("acme")

    async def init(self, context: Any = None) -> None:
        pass

    async def create_alloc_map(self) -> Any:
        return _map(Decimal(1), "ACME-0", "ACME-1")

    async def available_slots(self) -> Any:
        return {SLOT: Decimal(2)}

    def __init__(self, plugin_config: Any, local_config: Any) -> None:
        super().__init__(plugin_config, local_config)
        method, _, answer = plugin_config.get("fault", "").partition("=")
        if answer == "sync":
            listed = [_device("ACME-0"), _device("ACME-1")]
            setattr(self, method, lambda *_: listed)
        elif method:
            setattr(self, method, self._faulty(answer))

    def _faulty(self, answer: str) -> Any:
        async def call(*_: Any) -> Any:
            if answer == "raise":
                raise OSError("the driver is gone")
            if answer == "config":
                return self.local_config["container"]["scratch-root"]
            return ANSWERS[answer]()

        return call
