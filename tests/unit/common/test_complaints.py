"""What msgspec says of a value that does not fit, in our words."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from ai.backend.common.complaints import complaint


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1, le=9)]


class Cat(msgspec.Struct, tag="cat"):
    pass


class Dog(msgspec.Struct, tag="dog"):
    pass


class Pair(msgspec.Struct, array_like=True):
    first: int
    second: int


CASES: list[tuple[Any, Any, str, str]] = [
    # length
    (Annotated[str, Meta(min_length=4)], "ab", "", "must have at least 4 characters"),
    (Annotated[str, Meta(min_length=1)], "", "", "must have at least 1 character"),
    (Annotated[str, Meta(max_length=2)], "abc", "", "must have at most 2 characters"),
    (Annotated[list[int], Meta(min_length=2)], [1], "", "must have at least 2 items"),
    (Annotated[dict[str, int], Meta(max_length=1)], {"a": 1, "b": 2}, "", "must have at most 1 entry"),
    (Annotated[dict[str, int], Meta(min_length=2)], {}, "", "must have at least 2 entries"),
    (Annotated[bytes, Meta(max_length=2)], b"abc", "", "must have at most 2 bytes"),
    (tuple[int, int], [1], "", "must have 2 items"),
    (Pair, [1], "", "must have at least 2 items"),
    # range
    (Annotated[int, Meta(ge=1)], 0, "", "must be at least 1"),
    (Annotated[int, Meta(le=9)], 10, "", "must be at most 9"),
    (Annotated[int, Meta(gt=0)], 0, "", "must be at least 1"),
    (Annotated[float, Meta(gt=0)], 0, "", "must be more than 0.0"),
    (Annotated[float, Meta(lt=0.5)], 0.5, "", "must be less than 0.5"),
    (Annotated[int, Meta(multiple_of=5)], 4, "", "must be a multiple of 5"),
    # pattern
    (Annotated[str, Meta(pattern="^[a-z]+$")], "A", "", "must match ^[a-z]+$"),
    (Annotated[str, Meta(pattern="^'$")], "A", "", "must match ^'$"),
    # type
    (int, "1", "", "must be a whole number"),
    (int | None, "1", "", "must be a whole number or null"),
    (int | bool | None, "1", "", "must be true or false, a whole number or null"),
    (str, 1, "", "must be text"),
    (list[int], {}, "", "must be a list"),
    (dict[str, int], [], "", "must be an object"),
    (Inner, [], "", "must be an object"),
    (float, "x", "", "must be a number"),
    (UUID, "x", "", "must be a UUID"),
    (Decimal, "x", "", "must be a decimal number"),
    (bytes, "?", "", "must be bytes in base64"),
    (date, "x", "", "must be a date such as 2026-01-31"),
    (time, "x", "", "must be a time of day such as 12:00:00"),
    (timedelta, "x", "", "must be a duration such as PT90S"),
    (datetime, "x", "", "must be a time such as 2026-01-31T12:00:00Z"),
    (
        Annotated[datetime, Meta(tz=True)],
        "2026-01-31T12:00:00",
        "",
        "must be a time with its zone, such as 2026-01-31T12:00:00Z",
    ),
    (Annotated[datetime, Meta(tz=False)], "2026-01-31T12:00:00Z", "", "must be a time without a zone"),
    # fields
    (Inner, {}, "", "required"),
    (Inner, {"size": 1, "more": 1}, "", "unknown field"),
    (list[Inner], [{"size": 1}, {"size": 0}], "[1].size", "must be at least 1"),
    (dict[str, Inner], {"a": {"size": 10}}, "[...].size", "must be at most 9"),
    (dict[Annotated[str, Meta(min_length=2)], int], {"a": 1}, "", "a key must have at least 2 characters"),
    # choices
    (Literal["a", "b"], "c", "", "must be one of a, b"),
    (Literal["a"] | None, "c", "", "must be a"),
    (Colour, "green", "", "must be one of red, blue"),
    (list[Colour], ["red", "green"], "[1]", "must be one of red, blue"),
    (Literal[tuple(range(20))], 99, "", "must be one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ..."),
    (Cat | Dog, {"type": "cow"}, ".type", "must not be 'cow'"),
]


@pytest.mark.parametrize(("annotation", "value", "path", "sentence"), CASES, ids=[case[3][:40] for case in CASES])
def test_a_complaint_is_a_sentence_of_ours(annotation: Any, value: Any, path: str, sentence: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, annotation)
    assert complaint(caught.value, annotation) == (path, sentence)


def test_numbers_that_no_machine_word_holds() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b"1e999", type=float)
    assert complaint(caught.value) == ("", "is too large or too small")


def test_words_that_are_not_known_are_handed_on() -> None:
    assert complaint(msgspec.ValidationError("Something new - at `$.a.b`")) == (".a.b", "Something new")


@pytest.mark.timeout(60)  # it took time that grew with the square of the length: minutes for this one
@pytest.mark.parametrize("end", ["x", "`", "`$.type`"])
def test_megabytes_that_look_like_paths_are_read_at_once_and_not_told_back(end: str) -> None:
    sent = " - at `" * 200_000 + end
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"cat": {"type": sent}}, dict[str, Cat | Dog])
    path, sentence = complaint(caught.value)
    assert path == "[...].type"
    assert sentence.startswith("must not be ' - at `")
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({sent: 1, "size": 1}, Inner)
    path, unknown = complaint(caught.value)
    assert unknown == "unknown field"
    words = complaint(msgspec.ValidationError(sent))
    assert all(len(text) <= 1_000 for text in (path, sentence, *words))
