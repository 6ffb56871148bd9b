"""The tables of the manager (peer facts 4.4). Column names of sessions, kernels and agents are the fields of the
model."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ForeignKey,
    MetaData,
)

from ai.backend.infra.database import naming_convention

metadata = MetaData(naming_convention=naming_convention)


def required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    """Return a column that is never NULL."""
    return Column(name, kind, *constraints, nullable=False, **options)
