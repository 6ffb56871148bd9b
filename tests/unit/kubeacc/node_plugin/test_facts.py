"""What operations did to devices is known until the machine starts anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.common.ids import DeviceId
from ai.backend.kubeacc.crd.vocabulary import PowerState
from ai.backend.kubeacc.node_plugin.facts import DeviceFacts, FactStore

KEY = ("mock", DeviceId("a/b"))
OFF = DeviceFacts(power=PowerState.OFF)


def test_facts_survive_the_process_and_not_the_machine(tmp_path: Path) -> None:
    FactStore(tmp_path / "facts", current_boot_id="one").put(KEY, OFF)
    assert FactStore(tmp_path / "facts", current_boot_id="one").get(KEY) == OFF
    assert FactStore(tmp_path / "facts", current_boot_id="two").get(KEY) == DeviceFacts()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"mock/a": {"power": "Off"}}', '{"boot_id": "one", "facts": 7}'])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "facts").write_text(content)
    assert FactStore(tmp_path / "facts", current_boot_id="one").get(KEY) == DeviceFacts()
