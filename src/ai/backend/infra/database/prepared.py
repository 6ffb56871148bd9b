"""Compiles statements once and executes them by the driver, for the code that every session runs through.

SQLAlchemy's own execution of a statement costs 70 microseconds, 350 if the statement is built anew; SQLite itself
needs five (docs/explanation/life-of-a-session.md).
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec
from sqlalchemy import ARRAY, Connection, Select, Table, bindparam, insert, or_, update
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import Boolean, Float, Text, TypeDecorator, TypeEngine

Values = Mapping[str, Any]
_Convert = Callable[[Any], Any]


class Prepared:
    """Represents a statement that is compiled once and executed many times, with different values.

    The names of its ``bindparam`` are the keys of the values.
    """

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._by_dialect: dict[str, _Compiled] = {}

    def all(self, connection: Connection, values: Values | None = None) -> list[Any]:
        """Returns the rows as named tuples."""
        compiled = self._compiled(connection.dialect)
        parameters = compiled.convert_parameters(values or {})
        rows: Sequence[Sequence[Any]]
        if compiled.is_sqlite:
            rows = rows_of_sqlite(connection, compiled.text, parameters)
        else:
            rows = connection.exec_driver_sql(compiled.text, parameters).all()
        return compiled.convert_rows(rows)

    def first(self, connection: Connection, values: Values | None = None) -> Any:
        """Returns the first row. Returns None if there is no row."""
        rows = self.all(connection, values)
        return rows[0] if rows else None

    def execute(self, connection: Connection, *values: Values) -> int:
        """Executes the statement once for each of ``values``. Returns how many rows a single execution changed."""
        compiled = self._compiled(connection.dialect)
        rows = [compiled.convert_parameters(row) for row in values]
        if compiled.is_sqlite:
            return sum(run_on_sqlite(connection, compiled.text, row).rowcount for row in rows)
        return connection.exec_driver_sql(compiled.text, rows if len(rows) > 1 else rows[0]).rowcount

    def text(self, dialect: Dialect) -> str:
        """Returns the SQL text for a kind of database."""
        return self._compiled(dialect).text

    def _compiled(self, dialect: Dialect) -> _Compiled:
        compiled = self._by_dialect.get(dialect.name)
        if compiled is None:
            compiled = self._by_dialect[dialect.name] = _Compiled(self._statement, dialect)
        return compiled


class _Compiled:
    """Holds the SQL of a statement for one kind of database, with the conversions of its values and columns."""

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        sql_compiler = cast(SQLCompiler, statement.compile(dialect=dialect))
        self.is_sqlite = dialect.name == "sqlite"
        self.text = sql_compiler.string
        self._parameters: list[tuple[str, _Convert | None, Any]] = []
        for name in sql_compiler.positiontup or ():
            bound_parameter = sql_compiler.binds[name]
            processor = bound_parameter.type.dialect_impl(dialect).bind_processor(dialect)
            self._parameters.append(
                (bound_parameter.key, processor, None if bound_parameter.required else bound_parameter.effective_value)
            )
        columns = list(statement.selected_columns) if isinstance(statement, Select) else []
        row_tuple = namedtuple("Row", [column.key for column in columns])  # type: ignore[misc]  # noqa: PYI024  # dynamic
        self._make = type("Row", (row_tuple,), {"__slots__": (), "_mapping": property(row_tuple._asdict)})._make  # type: ignore[attr-defined]  # of names
        self._results: list[tuple[int, _Convert]] = []
        for index, column in enumerate(columns):
            if isinstance(column.type, Float):
                continue  # every driver returns it as it is
            convert = column.type.dialect_impl(dialect).result_processor(dialect, None)
            if convert is not None:
                self._results.append((index, convert))

    def convert_parameters(self, values: Values) -> tuple[Any, ...]:
        return tuple(
            [
                values.get(name, default) if convert is None else convert(values.get(name, default))
                for name, convert, default in self._parameters
            ]
        )

    def convert_rows(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        make_row, conversions = self._make, self._results
        converted_rows = []
        for row in rows:
            values = list(row)
            for index, convert in conversions:
                values[index] = convert(values[index])
            converted_rows.append(make_row(values))
        return converted_rows


def run_on_sqlite(connection: Connection, text: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
    """Executes a prepared statement by the SQLite driver. Raises the errors of SQLAlchemy."""
    try:
        return _driver_connection(connection).execute(text, parameters)
    except sqlite3.Error as error:
        raise _sqlalchemy_error(error, connection, text, parameters) from error


def rows_of_sqlite(connection: Connection, text: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
    """Returns the rows of a prepared statement on SQLite.

    Raises the errors of SQLAlchemy, also for those that come after the first row, such as the interruption of a
    transaction that takes too long for the event loop.
    """
    try:
        return _driver_connection(connection).execute(text, parameters).fetchall()
    except sqlite3.Error as error:
        raise _sqlalchemy_error(error, connection, text, parameters) from error


def _driver_connection(connection: Connection) -> sqlite3.Connection:
    return cast(sqlite3.Connection, connection.connection.dbapi_connection)


def _sqlalchemy_error(
    error: sqlite3.Error, connection: Connection, text: str, parameters: tuple[Any, ...]
) -> Exception:
    return DBAPIError.instance(text, parameters, error, sqlite3.Error, dialect=connection.dialect)


def parameter(column: ColumnElement[Any], name: str | None = None) -> Any:
    """Returns the parameter ``name`` with the type of the column. The default name is the column's name."""
    return bindparam(name or str(column.key), type_=column.type)


@lru_cache(256)
def insertion(table: Table, names: tuple[str, ...] | None = None) -> Prepared:
    """Returns a statement that inserts a row with the given columns, by default all columns."""
    columns = [table.c[name] for name in names or table.c.keys()]
    return Prepared(insert(table).values({column.name: parameter(column) for column in columns}).inline())


@lru_cache(1024)
def updating(table: Table, keys: tuple[str, ...], names: tuple[str, ...]) -> Prepared:
    """Returns a statement that updates the columns ``names`` of the row with the given keys.

    The new values are the parameters ``new_...``.
    """
    values = {name: parameter(table.c[name], f"new_{name}") for name in names}
    return Prepared(update(table).where(*(table.c[key] == parameter(table.c[key]) for key in keys)).values(values))


# ---- membership in a list, which SQLAlchemy writes anew for each length


def is_any(column: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """Returns the condition that a column has one of a few fixed values."""
    return or_(*(column == value for value in sorted(values)))


class IsOneOf(ColumnElement[bool]):
    """Represents the condition that a text column has one of the values in the list parameter ``name``."""

    inherit_cache = False
    type = Boolean()

    def __init__(self, column: ColumnElement[Any], name: str) -> None:
        self.column = column
        self.values: Any = bindparam(name, type_=_Texts(column.type))

    def self_group(self, against: Any = None) -> Any:
        return self  # without "= 1", which is for columns


@compiles(IsOneOf, "sqlite")
def _render_in_json(element: IsOneOf, compiler: SQLCompiler, **options: Any) -> str:
    values = compiler.process(element.values, **options)
    return f"{compiler.process(element.column, **options)} IN (SELECT value FROM json_each({values}))"


@compiles(IsOneOf, "postgresql")
def _render_in_array(element: IsOneOf, compiler: SQLCompiler, **options: Any) -> str:
    values = compiler.process(element.values, **options)
    return f"{compiler.process(element.column, **options)} = ANY ({values})"


class _Texts(TypeDecorator[Any]):
    """Passes a list of a column's values as one parameter: JSON on SQLite, an array on PostgreSQL."""

    impl = Text
    cache_ok = False

    def __init__(self, item: TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else ARRAY(Text()))

    def bind_processor(self, dialect: Dialect) -> _Convert:
        convert = self.item.dialect_impl(dialect).bind_processor(dialect)

        def bind(values: Collection[Any]) -> Any:
            texts = [str(value) if convert is None else convert(value) for value in values]
            return msgspec.json.encode(texts).decode() if dialect.name == "sqlite" else texts

        return bind
