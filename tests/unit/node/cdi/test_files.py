"""Specifications in directories: who wins, what is written, and what is removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.node.cdi.registry import CdiRegistry
from ai.backend.node.cdi.writing import file_prefix, remove_others, write_specification


def put(path: Path, *names: str, env: str = "A=1") -> Path:
    devices = [{"name": name, "containerEdits": {"env": [env]}} for name in names]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cdiVersion": "0.3.0", "kind": "acme.com/npu", "devices": devices}))
    return path


def test_a_later_directory_wins_and_a_conflict_is_in_neither(tmp_path: Path) -> None:
    low, high = tmp_path / "etc", tmp_path / "run"
    put(low / "a.json", "n0", "n1", env="FROM=etc")
    put(high / "a.json", "n0", env="FROM=run")
    found = CdiRegistry([low, high, tmp_path / "none"]).devices()
    assert {name: device.edits.env for name, device in found.items()} == {
        "acme.com/npu=n0": ("FROM=run",),
        "acme.com/npu=n1": ("FROM=etc",),
    }
    put(high / "b.json", "n0")
    assert list(CdiRegistry([low, high]).devices()) == ["acme.com/npu=n1"]


def test_yaml_is_read_and_what_cannot_be_used_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    env: [A=1]\n"
    )
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "unsafe.yaml").write_text("!!python/object/apply:os.system ['true']")
    (tmp_path / "link.json").symlink_to("/dev/zero")
    (tmp_path / "notes.txt").write_text("{")
    assert list(CdiRegistry([tmp_path]).devices()) == ["nvidia.com/gpu=0"]
    assert sum("is not used" in record.message for record in caplog.records) == 3


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    put(tmp_path / "a.json", "n0")
    assert list(CdiRegistry([tmp_path]).devices()) == ["acme.com/npu=n0"]
    put(tmp_path / "new.json", "n0", "n1").replace(tmp_path / "a.json")
    assert len(CdiRegistry([tmp_path]).devices()) == 2


CONTENT: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "acme.com/npu",
    "devices": [{"name": "n0", "containerEdits": {"env": ["A=1"]}}],
}


def test_a_plugins_specification_is_written_with_the_lowest_version(tmp_path: Path) -> None:
    assert write_specification(tmp_path / "cdi", "i-1", "npu", CONTENT) == {"acme.com/npu=n0"}
    (path,) = (tmp_path / "cdi").iterdir()
    assert json.loads(path.read_text())["cdiVersion"] == "0.3.0"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(CdiRegistry([tmp_path / "cdi"]).devices()) == ["acme.com/npu=n0"]
    inode = path.stat().st_ino
    write_specification(tmp_path / "cdi", "i-1", "npu", CONTENT)
    assert path.stat().st_ino == inode, "an equal file is left alone"
    write_specification(tmp_path / "cdi", "i-1", "npu", {**CONTENT, "devices": []})
    assert path.stat().st_ino != inode


def test_nothing_wrong_is_written_and_no_link_is_followed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_specification(tmp_path, "i-1", "npu", {**CONTENT, "hooks": []})
    assert list(tmp_path.iterdir()) == []
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for suffix in (".json", ".json.tmp"):
        (tmp_path / f"{file_prefix('i-1')}npu{suffix}").symlink_to(victim)
    write_specification(tmp_path, "i-1", "npu", CONTENT)
    assert victim.read_text() == "kept"


def test_files_of_plugins_that_are_gone_are_removed(tmp_path: Path) -> None:
    for agent, key in (("i-1", "npu"), ("i-1", "old/../key"), ("i-1-b", "npu"), ("i/1", "npu")):
        write_specification(tmp_path, agent, key, CONTENT)
    put(tmp_path / "nvidia.json", "n1")
    (removed,) = remove_others(tmp_path, "i-1", {"npu"})
    assert removed.name.startswith(file_prefix("i-1") + "old_.._key")
    assert len(list(tmp_path.iterdir())) == 4
    assert remove_others(tmp_path / "none", "i-1", ()) == []
