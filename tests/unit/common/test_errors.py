"""The taxonomy: every class crosses the wire and comes out as itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ai.backend.common import errors
from ai.backend.common.errors import BackendError, Blame, CreationDeferred, InternalError, from_wire


def tree(cls: type[BackendError] = BackendError) -> Iterator[type[BackendError]]:
    for sub in cls.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield sub
            yield from tree(sub)


CLASSES = sorted(set(tree()), key=lambda c: c.__name__)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_comes_out_of_the_wire_as_itself(cls: type[BackendError]) -> None:
    error = cls("what happened", data={"field": "x"})
    again = from_wire(cls.code, error.message, error.data)
    assert type(again) is cls
    assert (again.message, again.data, str(again)) == (error.message, error.data, "what happened")


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_who_is_to_blame_in_a_sentence(cls: type[BackendError]) -> None:
    assert isinstance(cls.blame, Blame)
    assert re.fullmatch(r"[a-z]+(?:-[a-z]+)*", cls.code)
    assert cls.title.endswith(".")
    assert cls().message == cls.title


def test_codes_are_unique() -> None:
    codes = [c.code for c in CLASSES]
    assert len(set(codes)) == len(codes)


def test_an_unknown_code_is_our_fault() -> None:
    error = from_wire("from-the-future", "what", {"a": 1})
    assert type(error) is InternalError
    assert (error.message, error.data) == ("what", {"a": 1})


def test_a_deferral_keeps_its_delay() -> None:
    error = CreationDeferred("busy", retry_after=2.5, data={"plugin": "x"})
    again = from_wire(error.code, error.message, error.data)
    assert isinstance(again, CreationDeferred)
    assert again.retry_after == 2.5
    lost = from_wire(error.code, error.message)
    assert isinstance(lost, CreationDeferred)
    assert lost.retry_after == 1.0


def test_errors_can_be_told_apart_by_what_helps() -> None:
    assert errors.Unavailable.retryable
    assert not errors.Forbidden.retryable
    assert errors.Conflict.blame is Blame.CALLER
