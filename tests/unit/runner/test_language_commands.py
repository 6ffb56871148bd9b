from __future__ import annotations

import shlex

import pytest

from ai.backend.runner import language_commands
from ai.backend.runner.output_files import changes


@pytest.mark.parametrize("text", ["", "a b", "it's", "'''", "$x `y` \\", "a\nb", "-n"])
def test_quote_is_one_word(text: str) -> None:
    assert shlex.split(language_commands.quote(text)) == [text]


@pytest.mark.parametrize("runtime", language_commands.RUNTIMES)
def test_every_runtime_has_a_program_and_never_cleans_by_default(runtime: str) -> None:
    assert language_commands.default_command(runtime, "clean") is None
    assert language_commands.default_command(runtime, "exec") or runtime == "app"


@pytest.mark.parametrize(
    ("label", "runtime"),
    [("python", "python"), ("Go", "golang"), ("julia", "julia"), ("vendor.h2o", "app"), ("", "app")],
)
def test_every_runtime_type_has_a_runtime(label: str, runtime: str) -> None:
    assert language_commands.runtime_of(label) == runtime


def test_changes_are_new_and_changed_files() -> None:
    before = {"same": (1, 2, 3), "changed": (1, 2, 3), "gone": (1, 2, 3)}
    after = {"same": (1, 2, 3), "changed": (1, 5, 4), "new": (2, 0, 9)}
    assert changes(before, after) == [{"name": "changed", "size": 5}, {"name": "new", "size": 0}]
