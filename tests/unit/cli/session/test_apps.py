"""Arguments for services, as `app --arg` takes them."""

from __future__ import annotations

import pytest

from ai.backend.cli.session.apps import parse_arguments


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((), {}),
        (("--verbose",), {"--verbose": None}),
        (("--port=1",), {"--port": "1"}),
        (("--text=a b=c 'd'",), {"--text": "a b=c 'd'"}),
        (("--empty=",), {"--empty": ""}),
        (("--size 1 2",), {"--size": ["1", "2"]}),
        (("--one 1",), {"--one": "1"}),
        (("--name 'a b' c=d",), {"--name": ["a b", "c=d"]}),
        (("--x=1", "--x=2", "--y", "--x 3 4"), {"--x": ["1", "2", "3", "4"], "--y": None}),
        (("--x", "--x=1"), {"--x": "1"}),
    ],
)
def test_one_value_or_several_or_none(texts: tuple[str, ...], found: dict[str, object]) -> None:
    assert parse_arguments(texts) == found


def test_quotes_must_end() -> None:
    with pytest.raises(ValueError, match="quotation"):
        parse_arguments(("--x 'a",))
