"""A daemon that root starts becomes the user of its settings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.process.user import change_user

CODE = """
import os, sys
from ai.backend.infra.process.user import change_user
change_user({}, {})
print(os.getresuid(), os.getresgid(), os.getgroups())
"""


def _ids_after(user: str, group: str) -> str:
    command = [sys.executable, "-c", CODE.format(user, group)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout.strip()


@pytest.mark.needs("root")
def test_root_becomes_a_user_for_good() -> None:
    assert _ids_after("54321", "None") == "(54321, 54321, 54321) (54321, 54321, 54321) [54321]"
    assert _ids_after("'54321'", "12345") == "(54321, 54321, 54321) (12345, 12345, 12345) [12345]"
    assert _ids_after("None", "12345").startswith("(0, 0, 0) (12345, 12345, 12345)")
    assert _ids_after("'root'", "None").startswith("(0, 0, 0) (0, 0, 0)")


def test_a_user_who_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match="There is no user nobody-of-that-name"):
        change_user("nobody-of-that-name", None)
    with pytest.raises(InvalidInput, match="There is no group none-of-that-name"):
        change_user(None, "none-of-that-name")


def test_nothing_changes_for_the_own_user() -> None:
    change_user(os.geteuid(), os.getegid())
    change_user(None, None)


def test_only_root_changes_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InvalidInput, match="Only root"):
        change_user(1001, None)
