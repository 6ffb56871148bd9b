"""Devices that fail too often are cordoned, and cordons of operators stay as they are."""

from __future__ import annotations

from typing import cast

from ai.backend.agent.config.settings import DeviceCordonSettings
from ai.backend.agent.devices.health_rules import HealthRules
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import DeviceId
from ai.backend.common.wire.agent import OperateDevice

DEVICE = DeviceId("gpu-0")


class Operations:
    def __init__(self) -> None:
        self.cordoned: set[tuple[str, DeviceId]] = set()
        self.requests: list[OperateDevice] = []
        self.is_away = False

    def is_cordoned(self, plugin_key: str, device_id: DeviceId) -> bool:
        return (plugin_key, device_id) in self.cordoned

    async def operate(self, request: OperateDevice) -> None:
        if self.is_away:
            raise Unavailable("the device does not answer")
        self.requests.append(request)


def rules_of(operations: Operations) -> HealthRules:
    settings = DeviceCordonSettings(failures=2, within=60.0)
    rules = HealthRules(settings, cast("DeviceOperations", operations), clock=lambda: 10.0)
    for _ in range(2):
        rules.on_failure("cuda", DEVICE)
    return rules


async def test_a_device_is_cordoned_once() -> None:
    operations = Operations()
    rules = rules_of(operations)
    await rules.apply()
    await rules.apply()
    assert [(each.action, each.device_id) for each in operations.requests] == [("cordon", DEVICE)]


async def test_a_cordon_or_taint_of_an_operator_is_not_replaced() -> None:
    operations = Operations()
    operations.cordoned.add(("cuda", DEVICE))
    await rules_of(operations).apply()
    assert operations.requests == []


async def test_a_cordon_that_fails_is_tried_again() -> None:
    operations = Operations()
    operations.is_away = True
    rules = rules_of(operations)
    await rules.apply()
    operations.is_away = False
    await rules.apply()
    assert len(operations.requests) == 1
