"""Remote calls are derived from the methods of an interface."""

from __future__ import annotations

from typing import Protocol

import msgspec
import pytest

from ai.backend.common.wire.methods import methods_of, remote


class Question(msgspec.Struct):
    wait_s: float


class Calls(Protocol):
    @remote("read", deadline_s=2.0, wait_field="wait_s")
    async def ask(self, question: Question) -> list[int]:
        """Answers."""
        ...

    @remote("once", stream="bytes")
    async def open(self, question: Question) -> object: ...

    @remote("repeatable")
    async def change(self, question: Question) -> None: ...


def test_a_call_is_what_its_method_says() -> None:
    methods = methods_of(Calls)
    assert list(methods) == ["ask", "open", "change"]
    ask = methods["ask"]
    assert (ask.request, ask.reply, ask.documentation) == (Question, list[int], "Answers.")
    assert (methods["change"].reply, methods["open"].reply, methods["open"].stream) == (None, None, "bytes")


def test_only_a_call_that_changes_nothing_ends_when_its_caller_goes() -> None:
    assert {name: method.abandonable for name, method in methods_of(Calls).items()} == {
        "ask": True,
        "open": False,
        "change": False,
    }


def test_a_request_may_add_to_the_deadline_and_never_takes_from_it() -> None:
    ask = methods_of(Calls)["ask"]
    assert [ask.deadline_of(Question(wait_s)) for wait_s in (0.0, 3.0, -9.0)] == [2.0, 5.0, 2.0]


def test_a_method_that_is_not_declared_is_refused() -> None:
    class Forgotten(Protocol):
        async def ask(self, question: Question) -> None: ...

    with pytest.raises(TypeError, match=r"Forgotten\.ask"):
        methods_of(Forgotten)


def test_a_method_has_one_argument() -> None:
    class Wide(Protocol):
        @remote("once")
        async def ask(self, question: Question, other: int) -> None: ...

    with pytest.raises(TypeError, match=r"Wide\.ask"):
        methods_of(Wide)
