"""Which plugins an agent loads."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ai.backend.accelerator.mock import plugin as mock_plugin
from ai.backend.agent.config.settings import INTRINSIC_PLUGINS, AgentSettings
from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.plugin.accelerator import ENTRY_POINT_GROUP, AbstractComputePlugin
from ai.backend.plugin.discovery import find_plugins, make_plugin, plugin_of
from ai.backend.plugin.settings import PluginSettings
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
    with pytest.raises(
        PluginError, match=r"no plugin no\.such\.package is installed, and .* has no module no; .* cpu, "
    ):
        source.load()


def test_a_module_may_import_the_base_class_of_its_plugin() -> None:
    base = fake_plugin("base")
    base.__module__ = "vendor.base"
    plugin = type("Card", (base,), {"__module__": "mine.card"})
    assert plugin_of(SimpleNamespace(__name__="mine", Base=base, Card=plugin), "mine") is plugin


def test_a_plugin_that_lacks_methods_is_told_which() -> None:
    class Half(AbstractComputePlugin):
        async def list_devices(self) -> Any:
            return []

    with pytest.raises(
        PluginError, match=r"shows 0 .*: Half lacks alloc_map_spec, alloc_to_devices, configurable_slots$"
    ):
        plugin_of(SimpleNamespace(Half=Half), "x")


def test_a_misspelt_setting_is_told_the_keys() -> None:
    class Keys(PluginSettings):
        lease_dir: str = ""
        speed: int = 1

    plugin = fake_plugin("a", settings_model=Keys)
    with pytest.raises(InvalidInput, match=r"plugins\.a\.sped: there is no such key; the keys are lease-dir, speed"):
        make_plugin(plugin, {"sped": 2})


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


def test_of_both_spellings_everything_is_allowed() -> None:
    both = {"allow-compute-plugins": ["x.y"], "allowed-compute-plugins": ["z", "x.y"]}
    assert AgentSettings.model_validate({"agent": both}).agent.allow_compute_plugins == ("x.y", "z")
    with pytest.raises(ValueError, match="allow"):
        AgentSettings.model_validate({"agent": {**both, "allow-compute-plugins": 3}})


def test_only_what_is_trusted_runs_in_the_agents_process() -> None:
    names = ["ai.backend.accelerator.mock", "vendor.gpu"]
    default = AgentSettings().agent.in_process_compute_plugins
    found = {s.name: s.isolated for s in find_plugins(names, [], INTRINSIC_PLUGINS, default)}
    assert found == {
        **dict.fromkeys(INTRINSIC_PLUGINS, False),
        "ai.backend.accelerator.mock": False,
        "vendor.gpu": True,
    }
    assert {s.isolated for s in find_plugins(names, [], [], ())} == {True}
    assert {s.isolated for s in find_plugins(names, [], [], ("*",))} == {False}


def test_names_that_match_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    find_plugins(["no-such", "ai.backend.accelerator.mock"], ["vendor.gone", "cpu"], INTRINSIC_PLUGINS)
    assert [record.getMessage() for record in caplog.records] == [
        "allow-compute-plugins names no-such, which is no installed plugin and no package",
        "block-compute-plugins names vendor.gone, which is no installed plugin and no package",
    ]


def test_finding_plugins_imports_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explosive").mkdir()
    (tmp_path / "explosive" / "__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    (source,) = find_plugins(["explosive.plugin"], [], [], [])
    assert (source.name, source.isolated) == ("explosive.plugin", True)


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


def test_plugins_of_one_module_are_told_apart() -> None:
    keys = [source.load().key for source in find_plugins(["gaudi2", "tt-n300", "sysfs", "gaudi2"], [], [])]
    assert keys == ["gaudi2", "tt-n300", "sysfs"]
    assert len(find_plugins(["ai.backend.accelerator.mem"], [], INTRINSIC_PLUGINS)) == 2
    assert len(find_plugins(["*"], [], INTRINSIC_PLUGINS)) == len(entry_points(group=ENTRY_POINT_GROUP))
