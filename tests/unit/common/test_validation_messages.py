"""Where a value does not fit, and why, as a user is told."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from ai.backend.common.validation_messages import split_message


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct):
    size: Annotated[int, Meta(ge=1)] = 1
    colour: Colour = Colour.RED
    letter: Literal["a", "b"] = "a"


class Outer(msgspec.Struct):
    parts: list[Inner] = []
    part: Inner | None = None


class Cat(msgspec.Struct, tag="cat"):
    pass


class Dog(msgspec.Struct, tag="dog"):
    pass


@pytest.mark.parametrize(
    ("annotation", "value", "path", "text"),
    [
        (int, "1", "", "Expected `int`, got `str`"),
        (Annotated[str, Meta(min_length=4)], "ab", "", "Expected a text of at least 4 characters"),
        (Annotated[list[int], Meta(max_length=1)], [1, 2], "", "Expected a list of at most 1 item"),
        (list[Annotated[int, Meta(le=9)]], [1, 10], "[1]", "Expected `int` <= 9"),
        (dict[str, Inner], {"a": {"size": 0}}, "[...].size", "Expected `int` >= 1"),
        (Literal["a", "b"], "c", "", "Expected one of a, b"),
        (Outer, {"parts": [{"letter": "c"}]}, ".parts[0].letter", "Expected one of a, b"),
        (Outer, {"part": {"colour": "green"}}, ".part.colour", "Expected one of red, blue"),
        (Literal["a"] | None, "c", "", "Expected one of a"),
        (list[Colour], ["red", "green"], "[1]", "Expected one of red, blue"),
        (Literal[tuple(range(20))], 99, "", "Expected one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ..."),
        (Cat | Dog, {"type": "cow"}, ".type", "Invalid value 'cow'"),
        (
            dict[Annotated[str, Meta(min_length=2)], int],
            {"a": 1},
            "",
            "Expected `str` of length >= 2 - at `key` in `$`",
        ),
    ],
)
def test_a_message_names_the_place_and_what_was_expected(annotation: Any, value: Any, path: str, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, annotation)
    assert split_message(caught.value, annotation) == (path, text)


@pytest.mark.parametrize("end", ["x", "`", "`$.type"])
def test_megabytes_are_not_told_back(end: str) -> None:
    sent = " - at `$" * 200_000 + end
    for value in ({"cat": {"type": sent}}, {sent: 1}):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.convert(value, dict[str, Cat | Dog])
        assert all(len(part) <= 200 for part in split_message(caught.value))


Tag = Annotated[str, Meta(pattern="^\\.[a-z]+$", description="letters after a dot")]


class Node(msgspec.Struct):
    tags: list[Tag] = []
    port: Annotated[str, Meta(pattern="^[0-9]+$")] = "1"
    child: Node | None = None


def test_a_pattern_with_a_description_is_said_in_its_words() -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert({"tags": [".ok", "bad"]}, Node)
    assert split_message(refused.value, Node) == (".tags[1]", "Expected letters after a dot")
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert({"port": "x"}, Node)
    assert split_message(refused.value, Node) == (".port", "Expected `str` matching regex '^[0-9]+$'")
