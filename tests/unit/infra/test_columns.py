"""Columns decode equal texts once, unless these are long."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite

from ai.backend.common.wire.reports import ImageReport
from ai.backend.infra.database.columns import JSONTuple


def test_equal_texts_of_a_shared_column_are_one_object() -> None:
    images = (ImageReport(name="python", architecture="x86_64"),)
    for dialect in (sqlite.dialect(), postgresql.dialect()):  # type: ignore[no-untyped-call]  # SQLAlchemy declares no types for them
        read: dict[bool, list[Any]] = {}
        for is_shared in (False, True):
            column = JSONTuple(ImageReport, is_shared=is_shared)
            write, decode = column.bind_processor(dialect), column.result_processor(dialect, None)
            text = write(images)
            assert text is not None
            read[is_shared] = [decode(text), decode("".join(text))]
            assert decode("[]") == ()
            assert decode(None) is None
        assert read[False][0] == read[True][0] == images
        assert read[True][0] is read[True][1]
        assert read[False][0] is not read[False][1]


def test_a_text_that_is_too_long_is_not_kept() -> None:
    decode = JSONTuple(str, is_shared=True).decode
    for text, is_kept in ((f'["{"x" * 65_532}"]', True), (f'["{"x" * 65_533}"]', False)):
        assert (decode(text) is decode(text)) is is_kept
