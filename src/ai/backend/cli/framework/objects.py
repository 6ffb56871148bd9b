"""Options of administrators' commands, and commands that list, show, add and change objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand, screen_of
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import print_result, print_rows
from ai.backend.cli.framework.values import decoded

if TYPE_CHECKING:
    from ai.backend.client.func.admin import PaginatedResult
    from ai.backend.client.session import AsyncSession

Columns = Sequence[Column]
T = TypeVar("T")


def given(**props: Any) -> dict[str, Any]:
    """Return the options that were used."""
    return {name: value for name, value in props.items() if value is not None}


def some_changes(props: Mapping[str, Any], example: str) -> dict[str, Any]:
    """Return the options of a change that were used.

    Raises:
        click.UsageError: none was used; the message names ``example``.
    """
    values = given(**props)
    if not values:
        raise click.UsageError(f"name something to change, such as {example}")
    return values


def readable(item: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the values that are JSON in a string; a text of a user that only begins like JSON stays."""
    return {
        name: decoded(value) if isinstance(value, str) and value.startswith(("{", "[")) else value
        for name, value in item.items()
    }


def list_them(
    load: Callable[[AsyncSession], Awaitable[Sequence[dict[str, Any]]]],
    columns: Columns,
    empty: str,
    *,
    describe: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Print a table of all objects; ``describe`` makes a row of an object."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        print_rows(screen, [readable(item) for item in await load(api)], columns, empty, describe=describe)

    call(screen, work)


def show_one(load: Callable[[AsyncSession], Awaitable[dict[str, Any] | None]], missing: str) -> None:
    """Print the facts of one object; exit with 1 and the message ``missing`` where there is none."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        item = await load(api)
        if item is None:
            screen.error(missing, code="not-found")
            return 1
        if screen.is_json:
            screen.json(readable(item))
        else:
            screen.facts((name.replace("_", " "), value) for name, value in readable(item).items())
        return 0

    call(screen, work)


def page_them(
    load: Callable[[AsyncSession], Awaitable[PaginatedResult]],
    columns: Columns,
    empty: str,
    *,
    describe: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Print a table of one page; in JSON mode with the number of all objects."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        page = await load(api)
        if screen.is_json:
            screen.json({"count": len(page.items), "total_count": page.total_count, "items": page.items})
        else:
            print_rows(screen, page.items, columns, empty, describe=describe)

    call(screen, work)


def print_reply(load: Callable[[AsyncSession], Awaitable[T]], describe: Callable[[T], str]) -> None:
    """Print what the server replied in JSON mode, otherwise the text that ``describe`` makes of it."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        reply = await load(api)
        print_result(screen, reply, describe(reply))

    call(screen, work)


def change(
    work: Callable[[AsyncSession], Awaitable[Any]],
    document: Mapping[str, Any],
    text: str,
    *,
    lines: Callable[[dict[str, Any]], str] | None = None,
) -> None:
    """Make a change and print that it is done.

    Args:
        work: makes the change; a mapping that it returns is added to the document.
        document: what is printed in JSON mode.
        text: what is printed otherwise.
        lines: makes the text of what ``work`` returned, in the place of ``text``.
    """
    screen = screen_of()

    async def run(api: AsyncSession) -> None:
        reply = await work(api)
        made = dict(reply) if isinstance(reply, Mapping) else {}
        print_result(screen, {**document, **made}, lines(made) if lines is not None else text)

    call(screen, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObjects:
    """A kind of objects that administrators list, add, change and delete by name.

    Args:
        area: the attribute of the API session with its methods ``list``, ``create``, ``update`` and ``delete``.
        noun: what one is called, in the singular and the plural.
        columns: of the list.
        options: declares the options of `add` and `update`.
        example: an option, for the message that nothing would be changed.
        describe: makes a row of the list of an object.
        add_help: the help of `add`.
        delete_help: the help of `delete`.
    """

    area: str
    noun: tuple[str, str]
    columns: Columns
    options: Callable[[Any], Any]
    example: str
    describe: Callable[[dict[str, Any]], Mapping[str, Any]] = dict
    add_help: str = ""
    delete_help: str = ""

    def methods(self, api: AsyncSession) -> Any:
        return getattr(api, self.area)


def add_object_commands(group: LazyGroup, kind: NamedObjects) -> None:
    """Declare `list`, `add`, `update` and `delete` of a kind of objects."""
    one, many = kind.noun
    name = click.argument("name")

    def list_() -> None:
        list_them(lambda api: kind.methods(api).list(), kind.columns, f"there are no {many}", describe=kind.describe)

    def add(name: str, **props: Any) -> None:
        values = given(**props)
        change(lambda api: kind.methods(api).create(name, **values), {"added": name, **values}, f"added {name}")

    def update(name: str, **props: Any) -> None:
        values = some_changes(props, kind.example)
        change(lambda api: kind.methods(api).update(name, **values), {"updated": name, **values}, f"updated {name}")

    def delete(name: str) -> None:
        change(lambda api: kind.methods(api).delete(name), {"deleted": name}, f"deleted {name}")

    update_help = f"Change the {one} NAME; what is not named stays as it is."
    group.command("list", cls=ListCommand, help=f"List the {many}.")(list_)
    group.command("add", cls=Leaf, help=kind.add_help or f"Make the {one} NAME.")(name(kind.options(add)))
    group.command("update", cls=Leaf, help=update_help)(name(kind.options(update)))
    group.command("delete", cls=Leaf, help=kind.delete_help or f"Remove the {one} NAME.")(name(delete))


def paging(command: Any) -> Any:
    """Declare the options of every paginated list."""
    for option in (
        click.option("--limit", type=click.IntRange(1, 100), default=100, help="Rows of a page."),
        click.option("--offset", type=click.IntRange(0), default=0, help="Rows to leave out."),
        click.option("--order", help="Columns, such as -created_at,name."),
        click.option("--filter", "filter_", help='Such as: status == "active" & email ilike "%@example.com".'),
    ):
        command = option(command)
    return command
