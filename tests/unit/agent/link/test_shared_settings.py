"""Settings of plugins in the shared configuration, as an agent of its own reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.link.managers import SharedConfiguration


class _Store:
    def __init__(self, entries: dict[str, str]) -> None:
        self.entries = {f"config/plugins/accelerator/{path}": value for path, value in entries.items()}

    async def get_prefix(self, prefix: str, scopes: Any = ()) -> dict[str, str]:
        return self.entries


async def merged(entries: dict[str, str], settings: dict[str, Any]) -> dict[str, Any]:
    parsed = AgentSettings.model_validate(settings)
    shared = SharedConfiguration(parsed)
    shared._store = cast("Any", _Store(entries))
    return dict((await shared.merged(parsed)).plugins)


@pytest.mark.parametrize("name", ["ai.backend.accelerator.mock", "ai.backend.accelerator.mock.isolated"])
async def test_settings_under_the_declared_slot_are_the_mocks(tmp_path: Path, name: str) -> None:
    """The key of the specification is ``config/plugins/accelerator/<slot_name>`` (03-06)."""
    declaration = tmp_path / "mock-accelerator.toml"
    declaration.write_text('slot_name = "mydevice"\n[[devices]]\nmother_uuid = "a"\nmodel_name = "m"\n')
    own = {"mock": {"config-path": str(declaration), "unit-proc": 4}}
    entries = {"mydevice/allocation_mode": "fractional", "mydevice/unit_proc": "9", "cuda/unit-mem": "1g"}
    found = await merged(entries, {"agent": {"allow-compute-plugins": [name]}, "plugins": own})
    assert found["mock"] == {"allocation-mode": "fractional", **own["mock"]}, "the file wins"
    assert found["cuda"] == {"unit-mem": "1g"}


async def test_without_the_mock_nothing_is_taken_over(tmp_path: Path) -> None:
    assert await merged({"mydevice/a": "1"}, {}) == {"mydevice": {"a": "1"}}
