from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidName
from ai.backend.common.names import check_env_name, check_session_name, check_slot_name, check_slug


@pytest.mark.parametrize("name", ["a", "a-b", "A_1", "a--b", "x" * 64])
def test_slugs(name: str) -> None:
    assert check_slug(name, what="name") == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "_a", "a.b", "a b", "é", "x" * 65, "a\n", "../a"])
def test_what_is_no_slug(name: str) -> None:
    with pytest.raises(InvalidName) as e:
        check_slug(name, what="folder")
    assert e.value.data == {"folder": "malformed"}


def test_dots_where_they_are_allowed() -> None:
    assert check_slug("a.b", what="name", allow_dots=True) == "a.b"
    with pytest.raises(InvalidName):
        check_slug(".a", what="name", allow_dots=True)


@pytest.mark.parametrize("name", ["abcd", "my-session.1", "x" * 64])
def test_session_names(name: str) -> None:
    assert check_session_name(name) == name


@pytest.mark.parametrize("name", ["abc", "x" * 65, "-abcd", "a b c d", "3f2b8c1e-0000-4000-8000-000000000000"])
def test_what_is_no_session_name(name: str) -> None:
    with pytest.raises(InvalidName):
        check_session_name(name)


@pytest.mark.parametrize("name", ["PATH", "_x", "a1"])
def test_environment_names(name: str) -> None:
    assert check_env_name(name) == name


@pytest.mark.parametrize("name", ["", "1a", "a-b", "A=B", "A\0", "x" * 257, "A\n"])
def test_what_is_no_environment_name(name: str) -> None:
    with pytest.raises(InvalidName):
        check_env_name(name)


@pytest.mark.parametrize("name", ["cpu", "cuda.device", "cuda.device:10g-mig", "tt-n300.device"])
def test_slot_names(name: str) -> None:
    assert check_slot_name(name) == name


@pytest.mark.parametrize("name", ["", "CPU", "cuda.", ".device", "a.b.c", "1a", "a b", "x" * 65])
def test_what_is_no_slot_name(name: str) -> None:
    with pytest.raises(InvalidName):
        check_slot_name(name)
