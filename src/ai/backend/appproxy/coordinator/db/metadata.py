"""The metadata of the coordinator's tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, MetaData

from ai.backend.infra.database import naming_convention

metadata = MetaData(naming_convention=naming_convention)


def required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    """Returns a column that is never NULL."""
    return Column(name, kind, *constraints, nullable=False, **options)
