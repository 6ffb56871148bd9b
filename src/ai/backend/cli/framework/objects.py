"""Commands that list, show, add and change objects, and follow background tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ai.backend.cli.framework.invoke import run_and_exit, run_in_event_loop
from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, screen_of
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.params import options
from ai.backend.cli.framework.values import parse_if_json

if TYPE_CHECKING:
    from uuid import UUID

    from ai.backend.client.func.admin import PaginatedResult
    from ai.backend.client.func.bgtask import Progress
    from ai.backend.client.session import AsyncSession

T = TypeVar("T")
Describe = Callable[[dict[str, Any]], Mapping[str, Any]]
Request = Callable[["AsyncSession"], Awaitable[T]]


def given_options(**props: Any) -> dict[str, Any]:
    """Returns the command-line options that the user gave: those whose value is not None."""
    return {name: value for name, value in props.items() if value is not None}


def required_changes(props: Mapping[str, Any], example_option: str) -> dict[str, Any]:
    """Returns the options that the user gave. Raises click.UsageError if the user gave none.

    The message of the error names ``example_option``.
    """
    changed_values = given_options(**props)
    if not changed_values:
        raise click.UsageError(f"name something to change, such as {example_option}")
    return changed_values


def parse_json_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mapping with each text that holds a JSON object or list replaced by the parsed value.

    Other texts that begin like JSON stay.
    """
    return {
        name: parse_if_json(value) if isinstance(value, str) and value.startswith(("{", "[")) else value
        for name, value in document.items()
    }


def list_objects(
    load: Request[Sequence[dict[str, Any]]],
    columns: Sequence[Column],
    empty_hint: str,
    *,
    describe: Describe | None = None,
) -> None:
    """Prints a table of all objects; ``describe`` makes a row of an object."""
    screen = screen_of()

    async def print_objects(api: AsyncSession) -> None:
        screen.print_rows([parse_json_values(item) for item in await load(api)], columns, empty_hint, describe=describe)

    run_and_exit(screen, print_objects)


def show_object(load: Request[dict[str, Any] | None], missing_text: str) -> None:
    """Prints the facts of one object; exits with 1 and ``missing_text`` if there is none."""
    screen = screen_of()

    async def print_object(api: AsyncSession) -> int:
        item = await load(api)
        if item is None:
            screen.error(missing_text, code="not-found")
            return 1
        if screen.is_json:
            screen.print_json(parse_json_values(item))
        else:
            screen.print_facts((name.replace("_", " "), value) for name, value in parse_json_values(item).items())
        return 0

    run_and_exit(screen, print_object)


def list_page(
    load: Request[PaginatedResult], columns: Sequence[Column], empty_hint: str, *, describe: Describe | None = None
) -> None:
    """Prints one page of a list as a table. In JSON mode it prints the items and the number of all objects."""
    screen = screen_of()

    async def print_page(api: AsyncSession) -> None:
        page = await load(api)
        if screen.is_json:
            screen.print_json({"count": len(page.items), "total_count": page.total_count, "items": page.items})
        else:
            screen.print_rows(page.items, columns, empty_hint, describe=describe)

    run_and_exit(screen, print_page)


def print_reply(load: Request[T], describe: Callable[[T], str]) -> None:
    """Prints the server's reply in JSON mode, otherwise the text that ``describe`` makes of it."""
    screen = screen_of()

    async def print_described(api: AsyncSession) -> None:
        reply = await load(api)
        screen.print_result(reply, describe(reply))

    run_and_exit(screen, print_described)


def change(request: Request[Any], document: Mapping[str, Any], result_text: str) -> None:
    """Runs a command that changes something: sends ``request``, then prints ``result_text`` or a JSON document.

    The JSON document is ``document`` with the fields of the reply, if the reply is a mapping.
    """
    screen = screen_of()

    async def send_change(api: AsyncSession) -> None:
        reply = await request(api)
        screen.print_result({**document, **(reply if isinstance(reply, Mapping) else {})}, result_text)

    run_and_exit(screen, send_change)


async def follow_task(
    api: AsyncSession,
    task_id: UUID | str,
    *,
    name: str,
    on_step: Callable[[Progress], None] | None = None,
    describe: Callable[[Progress], str] = lambda step: (
        f"{int(step.current)}/{int(step.total)} {step.message or ''}".strip()
    ),
) -> str:
    """Waits for the end of a background task and returns its last message.

    The command fails if the task does. Every step is passed to ``on_step``, or printed by ``describe``.
    """
    screen = screen_of()

    async def follow_steps(api: AsyncSession) -> str:
        printed_text = ""
        async for step in api.BackgroundTask(task_id).progress():
            if step.is_final:
                if step.state != "done":
                    state_text = "failed" if step.state == "failed" else f"was {step.state}"
                    screen.fail(f"{name} {state_text}: {step.message}")
                return step.message or ""
            if on_step is not None:
                on_step(step)
            elif (step_text := describe(step)) != printed_text:
                screen.inform(step_text)
                printed_text = step_text
        return ""

    return await run_in_event_loop(api, follow_steps)


async def follow_to_end(api: AsyncSession, task_id: UUID | str, *, name: str) -> tuple[dict[str, str], str]:
    """Waits for the end of a background task. Returns the result of the command as a JSON document and as text."""
    message = await follow_task(api, task_id, name=name)
    return {"task_id": str(task_id), "message": message}, message or "done"


_NO_OPTIONS = options()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObjects:
    """A kind of objects that administrators list, show, add, change and delete by name.

    Args:
        area: the attribute of the API session with its methods ``list``, ``create``, ``update`` and ``delete``.
        noun: the word for one, in the singular and the plural.
        columns: of the list.
        options: declares the options of `add` and `update`.
        add_options: further options of `add`.
        update_options: further options of `update`.
        example: an option, for the message that nothing would be changed.
        describe: makes a row of the list of an object.
        has_detail: whether `info` shows one.
        prints_values: whether documents of `add` and `update` have the values.
        add_help, update_note, delete_help: differences of the help of `add`, `update` and `delete`.
        deleted: the text after a deletion.
    """

    area: str
    noun: tuple[str, str]
    columns: Sequence[Column]
    options: Callable[[Any], Any]
    add_options: Callable[[Any], Any] = _NO_OPTIONS
    update_options: Callable[[Any], Any] = _NO_OPTIONS
    example: str
    describe: Describe = dict
    has_detail: bool = False
    prints_values: bool = False
    add_help: str = ""
    update_note: str = ""
    delete_help: str = ""
    deleted: str = "deleted {name}"


def add_object_commands(group: LazyGroup, kind: NamedObjects) -> None:
    """Declares `list`, `info`, `add`, `update` and `delete` of a kind of objects."""
    singular_noun, plural_noun = kind.noun
    argument = click.argument("name")

    def api_area(api: AsyncSession) -> Any:
        return getattr(api, kind.area)

    def list_() -> None:
        list_objects(
            lambda api: api_area(api).list(), kind.columns, f"there are no {plural_noun}", describe=kind.describe
        )

    def info(name: str) -> None:
        show_object(lambda api: api_area(api).detail(name), f"there is no {singular_noun} {name}")

    def save_object(method: str, past_verb: str, name: str, values: dict[str, Any]) -> None:
        document = {past_verb: name, **(values if kind.prints_values else {})}
        change(lambda api: getattr(api_area(api), method)(name, **values), document, f"{past_verb} {name}")

    def add(name: str, **props: Any) -> None:
        save_object("create", "added", name, given_options(**props))

    def update(name: str, **props: Any) -> None:
        save_object("update", "updated", name, required_changes(props, kind.example))

    def delete(name: str) -> None:
        change(lambda api: api_area(api).delete(name), {"deleted": name}, kind.deleted.format(name=name))

    update_help = f"Change the {singular_noun} NAME; what is not named stays as it is.{kind.update_note}"
    group.command("list", cls=ListCommand, help=f"List the {plural_noun}.")(list_)
    if kind.has_detail:
        group.command("info", help=f"Show the {singular_noun} NAME.")(argument(info))
    group.command("add", help=kind.add_help or f"Make the {singular_noun} NAME.")(
        options(argument, kind.add_options, kind.options)(add)
    )
    group.command("update", help=update_help)(options(argument, kind.update_options, kind.options)(update))
    group.command("delete", help=kind.delete_help or f"Remove the {singular_noun} NAME.")(argument(delete))
