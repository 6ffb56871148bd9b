"""Drivers of an IaaS that hang or lie, and devices that the server refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ai.backend.common.errors import BackendError, DeadlineExceeded, PluginError
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.controllers import driver_runner
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.driver_runner import DriverRunner
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectInvalid


class Server:
    """Refuses the devices of the names in ``refused``."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.applied: set[str] = set()

    def delays(self) -> Backoff:
        return Backoff(1.0, 1.0)

    async def apply(self, _resource: Any, name: str, _body: Any, **_: Any) -> None:
        if name in self.refused:
            raise ObjectInvalid(f"{name} has a wrong shape")
        self.applied.add(name)


class Rack(AbstractAcceleratorDriver):
    """Tells the devices that a test says; None: it hangs."""

    name = "rack"

    def __init__(self, devices: Any) -> None:
        self.devices = devices

    async def discover(self) -> Sequence[DriverDevice]:
        if self.devices is None:
            await asyncio.Event().wait()
        return cast("Sequence[DriverDevice]", self.devices)


def runner(server: Server, driver: Rack) -> DriverRunner:
    api = cast("KubeApi", server)
    return DriverRunner(api, ClusterView(api), driver)


async def test_a_device_that_the_server_refuses_keeps_no_other_from_being_reported() -> None:
    server = Server("rack-a")
    with pytest.raises(ObjectInvalid):  # the loop counts and repeats it
        await runner(server, Rack([DriverDevice(device_id=one) for one in "abc"])).discover_devices()
    assert server.applied == {"rack-b", "rack-c"}


@pytest.mark.parametrize("answer", [7, "abc", [7], {"a": 1}])
async def test_a_driver_that_lies_about_its_devices_changes_none(answer: object) -> None:
    server = Server()
    with pytest.raises(PluginError, match="instead of its devices"):
        await runner(server, Rack(answer)).discover_devices()
    assert server.applied == set()


async def test_a_driver_that_hangs_holds_no_report_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_runner, "_DISCOVERY_LIMIT_S", 0.05)
    hung = runner(Server(), Rack(None))
    with pytest.raises(DeadlineExceeded, match="has not told its devices"):
        await hung.discover_devices()
    assert issubclass(DeadlineExceeded, BackendError)  # what discover_now goes on after
    await hung.discover_now()
