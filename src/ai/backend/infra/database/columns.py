"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import BigInteger, DateTime, Integer, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from ai.backend.common.slots import ResourceSlot

naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name, so that alembic can alter it in batch mode."""

Whole = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit integer. SQLite increments only its own integer type automatically."""


class UTCDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC. SQLite drops the zone, so it is restored; naive values are rejected."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime does not say when it is")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class GUID(TypeDecorator[UUID]):
    """A UUID as its canonical text."""

    impl = String(36)
    cache_ok = True

    def process_bind_param(self, value: UUID | str | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value if isinstance(value, UUID) else UUID(value))

    def process_result_value(self, value: str | None, dialect: Dialect) -> UUID | None:
        return None if value is None else UUID(value)


class JSONText(TypeDecorator[Any]):
    """Any JSON value as text, through msgspec."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)


class EnumText(TypeDecorator[StrEnum]):
    """A string enumeration as its value. No native type and no CHECK: a new member needs no migration."""

    impl = String(32)
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.kind(value)


class JSONOf(TypeDecorator[Any]):
    """One value as JSON; ``kind`` is its type for msgspec."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else self._decoder.decode(value)


class JSONTuple(TypeDecorator[tuple[Any, ...]]):
    """A tuple as a JSON list; ``item`` is the type of each element for msgspec."""

    impl = Text
    cache_ok = True

    def __init__(self, item: Any = Any) -> None:
        super().__init__()
        self.item = item
        self._decoder = msgspec.json.Decoder(tuple[item, ...])

    def process_bind_param(self, value: tuple[Any, ...] | None, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[Any, ...] | None:
        return None if value is None else self._decoder.decode(value)


class QuantityMap(TypeDecorator[ResourceSlot]):
    """A ResourceSlot as JSON text with exact decimal texts."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: ResourceSlot | None, dialect: Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value.to_json()).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> ResourceSlot | None:
        return None if value is None else _read_quantities(value)


@lru_cache(1024)
def _read_quantities(text: str) -> ResourceSlot:
    """Parses and caches quantities: most kernels have one of the same few hundred immutable ResourceSlots."""
    return ResourceSlot.parse(msgspec.json.decode(text, type=dict[str, str]))
