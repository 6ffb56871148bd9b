"""Filters compiled to SQL."""

from __future__ import annotations

import pytest
from sqlalchemy import Boolean, Column, Integer, MetaData, Table

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.query.model import Condition, Operator, Scalar
from ai.backend.manager.query.sql import compile_filter

_TABLE = Table("things", MetaData(), Column("size", Integer), Column("is_open", Boolean))


@pytest.mark.parametrize(
    ("field", "op", "value"),
    [("size", "==", True), ("size", "<", False), ("is_open", "<", True), ("is_open", ">=", 1)],
)
def test_booleans_are_no_numbers(field: str, op: Operator, value: Scalar) -> None:
    with pytest.raises(InvalidInput):
        compile_filter(_TABLE, Condition(field=field, op=op, value=value))
