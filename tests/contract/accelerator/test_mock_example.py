"""The commented example of the documentation: discrete, fractional, cut into partitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ai.backend.accelerator.mock.isolated import IsolatedMockPlugin
from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.testing.accelerator.contract import ComputePluginContract

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "mock-accelerator.toml"


class ExampleContract(ComputePluginContract):
    image = "/opt/images/mock.bit"
    settings = MockSettings(config_path=EXAMPLE)

    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        return MockPlugin(self.kept(tmp_path))

    def kept(self, folder: Path) -> MockSettings:
        """With a place for what outlives a process, as an agent gives it."""
        return self.settings.model_copy(update={"state_path": folder / "state.json"})


class TestDiscrete(ExampleContract):
    pass


class TestFractional(ExampleContract):
    settings = MockSettings(config_path=EXAMPLE, allocation_mode="fractional")


class TestCut(ExampleContract):
    """Partitions that an earlier life made are there again."""

    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        state = tmp_path / "state.json"
        state.write_text(json.dumps({"partitions": {f"cut/1g.10gb/{n}": ["cut", "1g.10gb"] for n in range(3)}}))
        return MockPlugin(MockSettings(config_path=EXAMPLE, state_path=state))


class TestIsolated(ExampleContract):
    @pytest.fixture
    async def plugin(self, tmp_path: Path) -> AbstractComputePlugin:
        return IsolatedMockPlugin(self.kept(tmp_path))
