"""Column types that give and take the manager's own values."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


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
    """One value as JSON; ``kind`` is what msgspec makes of it."""

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
    """A tuple as a JSON list; ``item`` is what msgspec makes of each element."""

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
