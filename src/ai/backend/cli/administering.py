"""What the commands of administrators share: options, and how an object is shown, made and changed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import screen_of
from ai.backend.cli.output import decoded
from ai.backend.cli.vfolder_group import show, tell

if TYPE_CHECKING:
    from ai.backend.client.func.admin import PaginatedResult
    from ai.backend.client.session import AsyncSession

Columns = Sequence[tuple[str, str]]


def json_value(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    """A callback for options that take JSON."""
    try:
        return json.loads(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from error


def json_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, metavar="JSON", callback=json_value, **settings)


def given(**props: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in props.items() if value is not None}


def readable(item: Mapping[str, Any]) -> dict[str, Any]:
    """JSON in a string as what it says; what people wrote may begin like it and be none."""
    return {
        name: decoded(value) if isinstance(value, str) and value.startswith(("{", "[")) else value
        for name, value in item.items()
    }


def list_them(
    load: Callable[[AsyncSession], Awaitable[Sequence[dict[str, Any]]]], columns: Columns, nothing: str
) -> None:
    """A table of all of them."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        show(screen, [readable(item) for item in await load(api)], columns, nothing)

    call(screen, work)


def show_one(load: Callable[[AsyncSession], Awaitable[dict[str, Any] | None]], missing: str) -> None:
    """The facts of one; one line and exit code 1 where it is not there."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        found = await load(api)
        if found is None:
            screen.error(missing, code="not-found")
            return 1
        if screen.is_json:
            screen.json(readable(found))
        else:
            screen.facts((name.replace("_", " "), value) for name, value in readable(found).items())
        return 0

    call(screen, work)


def page_them(load: Callable[[AsyncSession], Awaitable[PaginatedResult]], columns: Columns, nothing: str) -> None:
    """A table of one page; as a document with how many there are."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        page = await load(api)
        if screen.is_json:
            screen.json({"count": len(page.items), "total_count": page.total_count, "items": page.items})
        else:
            show(screen, page.items, columns, nothing)

    call(screen, work)


def change(
    work: Callable[[AsyncSession], Awaitable[Any]],
    told: Mapping[str, Any],
    text: str,
    *,
    lines: Callable[[dict[str, Any]], str] | None = None,
) -> None:
    """Do it and say so. What the server made is added to the document; ``lines`` makes text of it."""
    screen = screen_of()

    async def run(api: AsyncSession) -> None:
        answer = await work(api)
        made = dict(answer) if isinstance(answer, Mapping) else {}
        tell(screen, {**told, **made}, lines(made) if lines is not None else text)

    call(screen, run)


def paging(command: Any) -> Any:
    """The options of every paginated list."""
    for option in (
        click.option("--limit", type=click.IntRange(1, 100), default=100, help="Rows of a page."),
        click.option("--offset", type=click.IntRange(0), default=0, help="Rows to leave out."),
        click.option("--order", help="Columns, such as -created_at,name."),
        click.option("--filter", "filter_", help='Such as: status == "active" & email ilike "%@example.com".'),
    ):
        command = option(command)
    return command
