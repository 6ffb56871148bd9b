"""Defines click groups and commands whose code is imported only when they run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ai.backend.cli.framework.completion import complete_names
from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.output import OutputMode, Screen

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

Outcome = tuple[Any, str] | int | None
"""A document and a text to print in the one or the other mode, an exit code, or None if the command has printed all."""
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that is not imported yet: ``target`` is ``module:attribute``, ``help`` its one line in listings.

    ``component`` names a part of the platform that need not be installed.
    """

    target: str
    help: str
    component: str | None = None

    def load(self) -> click.Command:
        module_name, _, attribute = self.target.partition(":")
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        except ImportError as error:
            raise click.ClickException(f"the {self.component or module_name} cannot be loaded: {error}") from error
        except AttributeError as error:
            raise click.ClickException(f"the {self.component or module_name} has no command {attribute!r}") from error
        if not isinstance(command, click.Command):
            raise click.ClickException(f"{self.target} is not a command")
        return command


class LazyGroup(click.Group):
    """A click group whose commands are imported only when they run, from a table of :class:`Entry`.

    The group may also have own commands, by default of class :class:`LeafCommand`.

    Its help lists the commands by section, if there are sections.
    """

    def __init__(
        self,
        *args: Any,
        entries: Mapping[str, Entry] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("context_settings", CONTEXT_SETTINGS)
        super().__init__(*args, **kwargs)
        self.entries: dict[str, Entry] = dict(entries or {})
        self.sections = dict(sections or {"Commands": tuple(self.entries)})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.entries, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        return entry.load() if entry else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib

            similar_names = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if similar_names:
                raise click.UsageError(
                    f"No such command {args[0]!r}; did you mean {similar_names[0]!r}?", ctx
                ) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own_commands = [(name, command) for name, command in sorted(self.commands.items()) if not command.hidden]
        rows = [(name, command.get_short_help_str(90)) for name, command in own_commands]
        for title, names in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([*((name, self.entries[name].help) for name in names), *rows])
            rows = []


def _set_output_mode(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        screen_of(ctx).mode = OutputMode(value)


def output_option() -> click.Option:
    """Returns the option ``--output``, by which every command prints text or JSON.

    It may come before or after the name of the command.
    """
    return click.Option(
        ["--output"],
        type=click.Choice([mode.value for mode in OutputMode]),
        expose_value=False,
        callback=_set_output_mode,
        help="What to print: text for people, or one JSON document.",
    )


class LeafCommand(click.Command):
    """A command that takes ``-h`` and ``--output`` beside its own options.

    A callback that is a coroutine function gets an open API session before its options, and returns an ``Outcome``.
    ``needs_keys`` is False for commands that work without a keypair, ``needs_loop`` True for those with streams or
    transfers.
    """

    def __init__(
        self,
        name: str | None,
        *,
        callback: Callable[..., Any],
        needs_keys: bool = True,
        needs_loop: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs["context_settings"] = {**CONTEXT_SETTINGS, **(kwargs.get("context_settings") or {})}
        if inspect.iscoroutinefunction(callback):
            callback = _wrap_in_session(callback, needs_keys=needs_keys, needs_loop=needs_loop)
        super().__init__(name, callback=callback, **kwargs)
        complete_names(self.params)
        self.params.append(output_option())


def _wrap_in_session(
    command: Callable[..., Coroutine[Any, Any, Outcome]], *, needs_keys: bool, needs_loop: bool
) -> Callable[..., NoReturn]:
    def run_command(**options: Any) -> NoReturn:
        screen = screen_of()

        async def run_with_api(api: AsyncSession) -> int | None:
            outcome = await command(api, **options)
            if not isinstance(outcome, tuple):
                return outcome
            screen.print_result(*outcome)
            return None

        run_and_exit(screen, run_with_api, needs_keys=needs_keys, needs_loop=needs_loop)

    return run_command


def _set_wide(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    screen_of(ctx).is_wide = value


def _set_following(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    screen_of(ctx).is_following = value


class ListCommand(LeafCommand):
    """A click command that prints a list, with the options ``--wide`` and, if it asks the API, ``--follow``."""

    def __init__(self, *args: Any, can_follow: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        option_help = "Print all columns, whole ids and exact times, however wide that is."
        self.params.append(
            click.Option(["-w", "--wide"], is_flag=True, expose_value=False, callback=_set_wide, help=option_help)
        )
        if can_follow:
            option_help = "Print it anew every two seconds until Ctrl-C."
            self.params.append(
                click.Option(["--follow"], is_flag=True, expose_value=False, callback=_set_following, help=option_help)
            )


LazyGroup.command_class = LeafCommand


def screen_of(ctx: click.Context | None = None) -> Screen:
    """Returns the :class:`Screen` of the running command, which prints the command's results."""
    return (ctx or click.get_current_context()).ensure_object(Screen)
