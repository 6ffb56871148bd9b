"""The agent writes the CDI specifications of its plugins, and removes them again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.cdi import CdiSpecifications
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.node.cdi.registry import CdiRegistry
from ai.backend.plugin.accelerator import PluginCapabilities
from ai.backend.plugin.discovery import PluginSource
from tests.support.agent_fakes import FakePlugin, fake_plugin


class Provider(FakePlugin):
    """Describes the devices ``names``."""

    key: ClassVar[Any] = "npu"
    capabilities = PluginCapabilities(cdi_provider=True)
    names: ClassVar[list[str]] = ["n0"]
    extra: ClassVar[dict[str, Any]] = {}
    calls: ClassVar[list[int]] = []

    async def cdi_spec(self) -> dict[str, Any]:
        self.calls.append(1)
        devices = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in self.names]
        return {"cdiVersion": "0.6.0", "kind": "acme.com/npu", "devices": devices, **self.extra}


def _same(plugin: type[FakePlugin]) -> type[FakePlugin]:
    return plugin


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cdi"
        self.provider: Any = type("Made", (Provider,), {"calls": []})
        self.sets: list[PluginSet] = []

    async def specifications(self, *plugins: Any) -> CdiSpecifications:
        sources = [PluginSource(plugin.key, partial(_same, plugin)) for plugin in plugins]
        self.sets.append(PluginSet(sources, AgentSettings()))
        await self.sets[-1].start(0.0)
        directories = [str(self.folder.parent / "none"), str(self.folder)]
        return CdiSpecifications(self.sets[-1], lambda: directories, agent_id="i-1")

    def described(self) -> list[str]:
        return sorted(CdiRegistry([self.folder]).devices())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    for plugins in made.sets:
        await plugins.stop()


async def test_specifications_are_written_and_follow_the_devices(node: Node) -> None:
    cdi = await node.specifications(node.provider, fake_plugin("cpu"))
    await cdi.refresh()
    assert node.described() == ["acme.com/npu=n0"]
    node.provider.names = ["n0", "n1"]
    await cdi.refresh()
    assert node.described() == ["acme.com/npu=n0", "acme.com/npu=n1"]


async def test_a_name_that_is_new_is_written_before_its_workload(node: Node) -> None:
    cdi = await node.specifications(node.provider)
    await cdi.ensure({"acme.com/npu=n0"})
    calls = len(node.provider.calls)
    await cdi.ensure({"acme.com/npu=n0"})
    await cdi.ensure(set())
    assert len(node.provider.calls) == calls
    node.provider.names = ["n0", "cut-just-now"]
    await cdi.ensure({"acme.com/npu=cut-just-now"})
    assert "acme.com/npu=cut-just-now" in node.described()


async def test_a_plugin_that_is_gone_leaves_no_specification(node: Node) -> None:
    await (await node.specifications(node.provider)).refresh()
    assert node.described()
    await (await node.specifications(fake_plugin("cpu"))).refresh()
    assert list(node.folder.iterdir()) == []


async def test_a_plugin_that_cannot_start_keeps_its_specification(node: Node) -> None:
    await (await node.specifications(node.provider)).refresh()

    async def fail(self: Any) -> None:
        raise OSError("no driver")

    node.provider.init = fail
    await (await node.specifications(node.provider)).refresh()
    assert node.described() == ["acme.com/npu=n0"]


async def test_devices_that_an_operators_file_describes_are_left_to_it(node: Node) -> None:
    """A name in two files of one directory would be in neither."""
    node.folder.mkdir()
    device = {"name": "n0", "containerEdits": {"env": ["FROM=operator"]}}
    content = {"cdiVersion": "0.3.0", "kind": "acme.com/npu", "devices": [device]}
    (node.folder / "operator.json").write_text(json.dumps(content))
    node.provider.names = ["n0", "n1"]
    await (await node.specifications(node.provider)).refresh()
    found = CdiRegistry([node.folder]).devices()
    assert found["acme.com/npu=n0"].edits.env == ("FROM=operator",)
    assert found["acme.com/npu=n1"].edits.env == ("A=1",)


async def test_a_wrong_specification_degrades_its_plugin(node: Node) -> None:
    node.provider.extra = {"colour": "red"}
    cdi = await node.specifications(node.provider)
    await cdi.refresh()
    assert "unknown field `colour`" in (node.sets[-1].handles[0].reason or "")
    node.provider.extra = {}
    await cdi.refresh()
    assert node.sets[-1].handles[0].healthy


async def test_a_directory_that_cannot_be_written_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.folder.write_text("a file")
    cdi = await node.specifications(node.provider)
    for _ in range(2):
        await cdi.refresh()
    assert sum("no CDI specifications are written" in record.message for record in caplog.records) == 1
