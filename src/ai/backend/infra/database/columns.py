"""Defines column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Integer, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.types import TypeDecorator, TypeEngine

from ai.backend.common.slots import ResourceSlot

T = TypeVar("T")
naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
"""Every constraint has a name, so that alembic can alter it in batch mode."""

_SHARED_VALUES, _MAX_SHARED_CHARACTERS = 64, 65_536
"""The number of texts of each column whose values are shared, and the longest of them: an agent chooses its texts."""

Whole = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit integer. SQLite increments only its own integer type automatically."""


class UTCDateTime(TypeDecorator[datetime]):
    """Stores an aware datetime in UTC. SQLite drops the zone, so it is restored; naive values are rejected."""

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


class _EncodedText(TypeDecorator[T]):
    """Serves as the base of column types that are stored as text. A subclass converts values that are not None."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = Text

    def encode(self, value: Any) -> str:
        return msgspec.json.encode(value).decode()

    @abstractmethod
    def decode(self, text: str) -> T: ...

    def bind_processor(self, dialect: Dialect) -> Callable[[T | None], str | None]:
        encode = self.encode
        return lambda value: None if value is None else encode(value)

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[str | None], T | None]:
        decode = self.decode
        return lambda text: None if text is None else decode(text)


class GUID(_EncodedText[UUID]):
    """Stores a UUID as its canonical text."""

    impl = String(36)
    cache_ok = True

    def encode(self, value: UUID | str) -> str:
        return str(value if isinstance(value, UUID) else UUID(value))

    def decode(self, text: str) -> UUID:
        return UUID(text)


class EnumText(_EncodedText[StrEnum]):
    """Stores a string enumeration as its value. No native type and no CHECK: a new member needs no migration."""

    impl = String(32)
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def encode(self, value: StrEnum) -> str:
        return str(value)

    def decode(self, text: str) -> StrEnum:
        return self.kind(text)


class JSONText(_EncodedText[Any]):
    """Stores a value as JSON. ``kind`` is the value's type for msgspec."""

    cache_ok = True

    def __init__(self, kind: Any = Any) -> None:
        super().__init__()
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, text: str) -> Any:
        return self._decoder.decode(text)


class JSONTuple(JSONText):
    """Stores a tuple as a JSON list. ``item`` is the type of each element for msgspec.

    With ``is_shared``, equal texts are read as one object, for long values that nothing changes, which are read much
    more often than they are written: reading the devices of a node again for each session is a tenth of its cost.
    """

    cache_ok = True

    def __init__(self, item: Any = Any, *, is_shared: bool = False) -> None:
        super().__init__(tuple[item, ...])
        self.item = item
        self.is_shared = is_shared
        self._decode = lru_cache(_SHARED_VALUES)(self._decoder.decode) if is_shared else self._decoder.decode

    def decode(self, text: str) -> Any:
        return self._decode(text) if len(text) <= _MAX_SHARED_CHARACTERS else self._decoder.decode(text)


class QuantityMap(_EncodedText[ResourceSlot]):
    """Stores a ResourceSlot as JSON text with exact decimal texts."""

    cache_ok = True

    def encode(self, value: ResourceSlot) -> str:
        return super().encode(value.to_json())

    def decode(self, text: str) -> ResourceSlot:
        return _read_quantities(text)


@lru_cache(1024)
def _read_quantities(text: str) -> ResourceSlot:
    """Parses and caches quantities: most kernels have one of the same few hundred immutable ResourceSlots."""
    return ResourceSlot.parse(msgspec.json.decode(text, type=dict[str, str]))


def required(name: str, kind: Any, *constraints: ForeignKey, **options: Any) -> Column[Any]:
    """Returns a column that is never NULL."""
    return Column(name, kind, *constraints, nullable=False, **options)


@compiles(CreateIndex, "postgresql")
def _create_index(element: CreateIndex, compiler: DDLCompiler, **options: Any) -> str:
    """Makes the condition that a table declares for SQLite on an index hold on PostgreSQL as well.

    ``postgresql_where`` in a table would load the dialect of PostgreSQL also where nothing but SQLite is used.
    """
    condition_text = element.element.dialect_options["sqlite"]["where"]
    if condition_text is not None:
        element.element.dialect_options["postgresql"]["where"] = condition_text
    return str(compiler.visit_create_index(element, **options))  # type: ignore[no-untyped-call]  # has no types
