"""Plugins for NPUs, GPUs, FPGAs and network cards come to Kubernetes unchanged, in host processes of their own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.publication import SlicePublication
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.slices import slice_specs
from ai.backend.node.kube_api.client import KubeApi
from tests.support.trees import roots


async def _published(settings: NodePluginSettings) -> list[dict[str, Any]]:
    """Returns the devices of the slices that a node plugin with these settings would write."""
    tracker = DeviceTracker(settings)
    try:
        await tracker.once()
        publication = SlicePublication(
            cast("KubeApi", SimpleNamespace(delays=lambda: Backoff(1.0, 1.0))), tracker, settings, "node"
        )
        specs = slice_specs(publication.offered_devices(), driver=settings.driver_name, node="node", generation=1)
        return [device for spec in specs for device in spec.get("devices", ())]
    finally:
        await tracker.close()


@pytest.mark.parametrize("family", ["atom-max", "rngd", "gaudi3", "tpu"])
async def test_an_npu_of_a_recorded_machine(family: str, tmp_path: Path) -> None:
    tree = {name.replace("_", "-"): str(place) for name, place in roots(family, tmp_path).items()}
    settings = NodePluginSettings.model_validate(
        {
            "compute-plugins": [family],
            "cdi-directory": str(tmp_path / "cdi"),
            "offers": {family: {"type": "NPU"}},
            "plugins": {family: tree},
        }
    )
    devices = await _published(settings)
    assert devices
    for device in devices:
        attributes = device["attributes"]
        assert (attributes["plugin"], attributes["type"]) == ({"string": family}, {"string": "NPU"})
        assert attributes["uuid"]["string"]
        assert attributes["model"]["string"]
        assert any(name != "memory" for name in device["capacity"])


@pytest.mark.parametrize("kind", ["GPU", "FPGA", "NIC"])
async def test_a_device_has_the_type_of_its_offer(kind: str, tmp_path: Path) -> None:
    declaration = tmp_path / "devices.toml"
    declaration.write_text('[[devices]]\nmother_uuid = "card"\ncount = 2\nmodel_name = "Card"\n')
    settings = NodePluginSettings.model_validate(
        {
            "compute-plugins": ["ai.backend.accelerator.mock"],
            "cdi-directory": str(tmp_path / "cdi"),
            "offers": {"mock": {"type": kind}},
            "plugins": {"mock": {"config-path": str(declaration), "state-path": str(tmp_path / "state.json")}},
        }
    )
    types = [device["attributes"]["type"] for device in await _published(settings)]
    assert types == [{"string": kind}] * 2
