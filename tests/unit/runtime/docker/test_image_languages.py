"""In which language a container of an image takes snippets (decision 0488)."""

import pytest

from ai.backend.runtime.docker.images import choose_runtime


@pytest.mark.parametrize(
    ("label", "has_python", "has_bash", "runtime"),
    [
        ("", True, True, "python"),
        ("", False, True, "bash"),
        ("", False, False, "app"),
        ("python", True, True, "python"),
        ("python", False, True, "app"),  # Python snippets never run as bash
        ("bash", True, False, "app"),
        ("r", False, True, "r"),
    ],
)
def test_code_never_runs_as_another_language(label: str, has_python: bool, has_bash: bool, runtime: str) -> None:
    assert choose_runtime(label, has_python=has_python, has_bash=has_bash) == runtime
