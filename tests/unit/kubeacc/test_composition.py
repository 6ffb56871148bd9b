"""Drivers and settings of the controllers, and the settings that the documentation shows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.kubeacc import composition
from ai.backend.kubeacc.composition import DRIVER_GROUP, load_driver
from ai.backend.kubeacc.controllers.settings import ControllerSettings
from ai.backend.kubeacc.drivers.cyborg.driver import CyborgDriver
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings

ROOT = Path(__file__).resolve().parents[3]


class Empty(AbstractAcceleratorDriver):
    name = "empty"

    async def discover(self) -> Sequence[DriverDevice]:
        return ()


@pytest.fixture(autouse=True)
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(group: str) -> list[EntryPoint]:
        values = {
            "cyborg": _declared()["cyborg"],
            "strange": "pathlib:PurePath",
            "lacking": "no_such_package:Driver",
        }
        return [EntryPoint(name, value, group) for name, value in values.items()] if group == DRIVER_GROUP else []

    monkeypatch.setattr(composition, "entry_points", listed)


def _declared() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared: dict[str, str] = project["entry-points"][DRIVER_GROUP]
    return declared


def test_the_driver_of_cyborg_is_made_from_its_table() -> None:
    auth = {"auth-url": "http://keystone/v3", "username": "u", "password": "p", "project-name": "x"}
    assert isinstance(load_driver("cyborg", {"auth": auth}), CyborgDriver)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("none", {}, "no driver 'none'.*there are: cyborg"),
        ("cyborg", {"auth": {}}, "account of the cloud is not complete"),
        ("cyborg", {"region": 5}, "drivers.cyborg: region"),
        ("lacking", {}, "needs the module no_such_package"),
        ("strange", {}, "cannot be made"),
    ],
)
def test_drivers_that_cannot_be_made_say_why(name: str, table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_driver(name, table)


def test_a_driver_without_settings_takes_none() -> None:
    assert Empty.from_settings({}).image_sources == {}
    with pytest.raises(InvalidInput, match="has no settings, but colour is set"):
        Empty.from_settings({"colour": 1})


def test_the_settings_that_the_documentation_shows_are_read() -> None:
    text = (ROOT / "docs/howto/operate-accelerators-in-kubernetes.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        table = tomllib.loads(block)
        model = ControllerSettings if "drivers" in table else NodePluginSettings
        model.model_validate(table)
        if "artifacts" in table:
            ControllerSettings.model_validate(table)
    drivers = ControllerSettings.model_validate(tomllib.loads(blocks[-1])).drivers
    auth = {key: value for key, value in drivers["cyborg"]["auth"].items() if key != "password-file"}
    assert isinstance(CyborgDriver.from_settings(drivers["cyborg"] | {"auth": auth}), CyborgDriver)
