"""Settings: file, environment, errors and what is generated."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from pydantic import Field
from tools.settings_pages import json_schema, reference_page, sample_toml

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import Settings, load_settings


class Inner(Settings):
    kernel_uid: int = Field(1000, description="Numeric user id.")
    names: list[str] = Field(default_factory=lambda: ["a"], description="Names.")


class Outer(Settings):
    agent_id: str = Field("i-local", description="Name of this agent.")
    ratio: float | None = Field(None, description="Share, 0 to 1.")
    container: Inner = Field(default_factory=Inner)


def test_file_and_environment_merge_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('agent-id = "i-1"\n[container]\nkernel-uid = 5\n')
    env = {"B_CONTAINER__KERNEL_UID": "7", "B_CONTAINER__NAMES": '["x", "y"]', "OTHER": "z"}
    loaded = load_settings(Outer, name="agent", path=file, env_prefix="B_", environ=env)
    assert (loaded.agent_id, loaded.container.kernel_uid, loaded.container.names) == ("i-1", 7, ["x", "y"])


def test_what_is_fixed_wins_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('agent-id = "i-1"\n[container]\nkernel-uid = 5\nnames = ["mine"]\n')
    fixed = {"agent-id": "i-2", "container": {"kernel-uid": 9}}
    loaded = load_settings(Outer, name="agent", path=file, fixed_values=fixed)
    assert (loaded.agent_id, loaded.container.kernel_uid, loaded.container.names) == ("i-2", 9, ["mine"])


@pytest.mark.parametrize(
    ("content", "named"),
    [("agent-idd = 1", "agent-idd"), ("[container]\nkernel-uid = 'x'", "container.kernel-uid"), ("a = ", "TOML")],
)
def test_a_bad_file_is_refused_naming_the_key(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=named):
        load_settings(Outer, name="agent", path=file)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        load_settings(Outer, name="agent", path=tmp_path / "none.toml")


@pytest.mark.parametrize("what", ["endless", "folder", "pipe", "large", "deep"])
def test_what_is_no_file_of_settings_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "agent.toml"
    if what == "endless":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("# " + "x" * (1 << 20) if what == "large" else "a = " + "[" * 100_000)
    with pytest.raises(InvalidInput, match=r"agent\.toml"):
        load_settings(Outer, name="agent", path=path)


def test_the_search_path_is_that_of_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "backend.ai").mkdir(parents=True)
    (tmp_path / "config" / "backend.ai" / "agent.toml").write_text('agent-id = "user"')
    assert load_settings(Outer, name="agent").agent_id == "user"
    (tmp_path / "agent.toml").write_text('agent-id = "cwd"')
    assert load_settings(Outer, name="agent").agent_id == "cwd"


def test_the_sample_holds_every_key_and_parses_to_the_defaults() -> None:
    sample = sample_toml(Outer, title="A sample")
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line and "..." not in line else line for line in sample.splitlines()
    )
    assert Outer.model_validate(tomllib.loads(uncommented)) == Outer()
    for key in ("agent-id", "ratio", "kernel-uid", "names"):
        assert key in sample
        assert key in reference_page(Outer, name="agent", env_prefix="B_")
    assert "B_CONTAINER__KERNEL_UID" in reference_page(Outer, name="agent", env_prefix="B_")
    assert "agent-id" in json.loads(json_schema(Outer))["properties"]
