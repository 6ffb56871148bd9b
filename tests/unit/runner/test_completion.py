from __future__ import annotations

import os

import pytest

from ai.backend.runner.completion import complete


class Tricky:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __dir__(self) -> list[str]:
        return ["visible", "_private"]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("val", ["value"]),
        ("print(val", ["value"]),
        ("x = [1, valu", ["value"]),
        ("first line\nvalu", ["value"]),
        ("whi", ["while"]),
        ("tricky.", ["tricky.visible"]),
        ("tricky._", ["tricky._private"]),
        ("f(x).", []),
        ("'text'.", []),
        ("1.", []),
        ("", []),
        ("from os import getcw", ["getcwd", "getcwdb"]),
        ("from unloaded.module import x", []),
    ],
)
def test_complete(before: str, expected: list[str]) -> None:
    namespace = {"value": 1, "tricky": Tricky(), "os": os}
    assert [match.decode() for match in complete(before, namespace)] == expected


def test_an_unknown_owner_is_an_error_of_the_caller() -> None:
    with pytest.raises(KeyError):
        complete("nothing.x", {})
