"""Which plugins an agent loads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ai.backend.accelerator.mock import plugin as mock_plugin
from ai.backend.agent.config.settings import INTRINSIC_PLUGINS, AgentSettings
from ai.backend.agent.services.plugins import find_plugins, plugin_of
from ai.backend.common.errors import PluginError
from tests.support.agent_fakes import FakePlugin, fake_plugin


def test_cores_and_memory_are_always_there() -> None:
    assert [source.name for source in find_plugins([], [], INTRINSIC_PLUGINS)] == list(INTRINSIC_PLUGINS)
    assert [source.load().key for source in find_plugins([], [], INTRINSIC_PLUGINS)] == ["cpu", "mem"]


def test_plugins_are_named_by_package() -> None:
    sources = find_plugins(["ai.backend.accelerator.mock"], ["ai.backend.accelerator.mem"], INTRINSIC_PLUGINS)
    assert [source.load().key for source in sources] == ["cpu", "mock"]


def test_one_plugin_is_loaded_once() -> None:
    names = ["ai.backend.accelerator.mock", "ai.backend.accelerator.mock", "ai.backend.accelerator.cpu"]
    assert len(find_plugins(names, [], INTRINSIC_PLUGINS)) == 3


def test_a_package_that_is_not_there_is_found_out_on_loading() -> None:
    (source,) = find_plugins(["no.such.package"], [], [])
    with pytest.raises(ModuleNotFoundError):
        source.load()


def test_a_module_shows_one_plugin() -> None:
    one, other = fake_plugin("a"), fake_plugin("b")
    assert plugin_of(one, "x") is one
    assert plugin_of(SimpleNamespace(Thing=one, number=1), "x") is one
    assert plugin_of(SimpleNamespace(Plugin=other, Thing=one), "x") is other
    with pytest.raises(PluginError, match="2 compute plugins"):
        plugin_of(SimpleNamespace(A=one, B=other), "x")
    with pytest.raises(PluginError, match="0 compute plugins"):
        plugin_of(SimpleNamespace(), "x")
    assert plugin_of(mock_plugin, "x").key == "mock"


def test_both_spellings_of_the_setting_are_read() -> None:
    for key in ("allow-compute-plugins", "allowed-compute-plugins"):
        settings = AgentSettings.model_validate({"agent": {key: ["x.y"]}})
        assert settings.agent.allow_compute_plugins == ("x.y",)
    assert AgentSettings.model_validate({"resource": {"reserved-mem": "1g"}}).resource.reserved_mem == 1 << 30
    assert FakePlugin.key == "cpu"


def test_reservations_reach_the_plugins_that_offer_the_devices() -> None:
    settings = AgentSettings.model_validate(
        {"resource": {"reserved-cpu": 2}, "plugins": {"mem": {"reserved-mem": "3g"}, "mock": {"unit-proc": 4}}}
    )
    assert settings.plugin_settings == {
        "cpu": {"reserved-cpu": 2},
        "mem": {"reserved-mem": "3g"},
        "mock": {"unit-proc": 4},
    }
    assert AgentSettings().plugin_settings == {}


def test_installed_plugins_are_named_by_their_entry_point() -> None:
    by_name = find_plugins(["mem", "ai.backend.accelerator.mock"], [], ["ai.backend.accelerator.cpu"])
    assert [source.load().key for source in by_name] == ["cpu", "mem", "mock"]
    everything = find_plugins(["*"], [], [])
    assert {"cpu", "mem"} <= {source.name for source in everything}


def test_every_installed_plugin_is_not_the_mock() -> None:
    """Decision 0024: a production node that allows ``*`` offers no devices that do not exist."""
    assert "mock" not in {source.load().key for source in find_plugins(["*"], [], INTRINSIC_PLUGINS)}
