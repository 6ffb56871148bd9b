"""`backend.ai run`: from code to its output in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.lazy import LeafCommand, screen_of
from ai.backend.cli.session.options import create_options_of, creation_options

if TYPE_CHECKING:
    from pathlib import Path

    from ai.backend.client.session import AsyncSession

PLATFORM_FAILURE = 125
_PLAN_OPTIONS = (
    "clean", "build_log", "remove", "enqueue_only", "max_wait", "stats", "max_parallel", "quiet",
)  # fmt: skip


def _parse_ranges(_ctx: click.Context, param: click.Parameter, expressions: tuple[str, ...]) -> Any:
    if not expressions:
        return [{}]
    from ai.backend.cli.run.ranges import RangeError, combinations, parse_range

    try:
        return list(combinations([parse_range(expression) for expression in expressions]))
    except RangeError as error:
        raise click.BadParameter(str(error), param=param) from None


def _parse_paths(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Path, ...]:
    from pathlib import Path

    return tuple(Path(value) for value in values)


def _parse_path(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    return _parse_paths(ctx, param, (value,))[0] if value is not None else None


def _base_folder_of(files: tuple[Path, ...], basedir: Path | None) -> Path:
    """Returns the folder to which the paths of the uploaded FILES are relative.

    By default it is the working directory, or the folder of the first file if this file is outside of it.
    """
    from pathlib import Path

    folder = Path.cwd() if basedir is None else basedir.resolve()
    if basedir is None and files and not files[0].parent.resolve().is_relative_to(folder):
        return files[0].parent.resolve()
    return folder


class RunCommand(LeafCommand):
    """The click class of the command `run`, which explains how to pass an unknown option on to the user's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        original_arguments = tuple(args)  # the parser empties its list
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from ai.backend.cli.run.cases import unknown_option_hint

            if hint := unknown_option_hint(error.option_name, original_arguments):
                raise click.UsageError(f"{error.message.rstrip('.')}; {hint}", ctx) from None
            raise


@click.command(cls=RunCommand)
@click.argument("image")
@click.argument("files", nargs=-1, type=click.Path(), callback=_parse_paths)
@click.option("-c", "--code", help="Code to run in query mode.")
@click.option("--clean", metavar="CMD", help="Command that cleans up before the build; batch mode.")
@click.option("--build", metavar="CMD", help="Build command; `*` is the image's own, which is the default.")
@click.option("--exec", "exec_", metavar="CMD", help="Command to run; `*` is the image's own.")
@click.option(
    "--basedir", type=click.Path(exists=True, file_okay=False), callback=_parse_path, help="Where FILES are from."
)
@click.option("--rm", "remove", is_flag=True, help="Terminate the session afterwards.")
@click.option("--build-log/--no-build-log", default=True, show_default=True, help="Show what the build prints.")
@click.option("--enqueue-only", is_flag=True, help="Return once the session is queued; runs nothing.")
@click.option("--max-wait", type=click.IntRange(0), default=0, metavar="SECONDS", help="Wait no longer for the start.")
@click.option("-q", "--quiet", is_flag=True, help="Print what the program prints, and why it waits.")
@click.option("-s", "--stats", is_flag=True, help="Show what the session used; with --rm.")
@click.option(
    "--env-range", callback=_parse_ranges, multiple=True, metavar="X=RANGE", help="Run for every value of $X in -e."
)
@click.option("--build-range", callback=_parse_ranges, multiple=True, metavar="X=RANGE", help="The same for --build.")
@click.option("--exec-range", callback=_parse_ranges, multiple=True, metavar="X=RANGE", help="The same for --exec.")
@click.option("--max-parallel", type=click.IntRange(1), default=32, show_default=True, help="Cases at one time.")
@creation_options
def run(
    image: str, files: tuple[Path, ...], code: str | None, build: str | None, exec_: str | None, env_range: Any,
    build_range: Any, exec_range: Any, **options: Any,
) -> None:  # fmt: skip
    """Run code in a session of IMAGE, with FILES uploaded to its home.

    With -c the code runs as if typed at a prompt. With --exec the command runs. Otherwise the first of FILES runs, such
    as my.py by `python my.py`; where a file is called main, or its language must be built, the image says how.
    It exits as the program did: with its exit code, 1 where a -c code raised, 125 where the platform failed, 124 where
    --max-wait ran out, 130 when interrupted.

    \b
      backend.ai run --rm -r cpu=1 -r mem=256m -c 'print("hello world")' python
      backend.ai run --rm python ./myscript.py
      backend.ai run --rm --exec 'python myscript.py arg' python ./myscript.py
      backend.ai run --rm -e 'N=$X' --env-range X=case:1,2,3 -c 'import os; print(os.environ["N"])' python
    """
    from ai.backend.cli.run.cases import Plan, make_cases, missing_file_problem
    from ai.backend.cli.run.ranges import RangeError

    screen = screen_of()
    if code is None and not files and exec_ is None and not options["enqueue_only"]:
        raise click.UsageError("there is nothing to run: give -c CODE, or FILES, or --exec CMD")
    if code is not None and (exec_ is not None or build is not None):
        raise click.UsageError("-c runs code at once: it cannot go with --build and --exec")
    try:
        ranges_by_kind = {"env_ranges": env_range, "build_ranges": build_range, "exec_ranges": exec_range}
        cases = make_cases(options["envs"], build, exec_, **ranges_by_kind)
    except RangeError as error:
        raise click.UsageError(str(error)) from None
    if file_problem := missing_file_problem(image, files):
        raise click.UsageError(file_problem)
    basedir = options.pop("basedir")
    plan_options = {name: options.pop(name) for name in _PLAN_OPTIONS}
    plan = Plan(
        image=image,
        code=code,
        files=tuple(file.parent.resolve() / file.name for file in files),
        basedir=_base_folder_of(files, basedir) if files else basedir,
        name=options["name"],
        creation=create_options_of(options),
        cases=cases,
        **plan_options,
    )

    async def run_cases(api: AsyncSession) -> int:
        from ai.backend.cli.run.runs import run_plan

        return await run_plan(api, screen, plan)

    run_and_exit(screen, run_cases, failure_exit_code=PLATFORM_FAILURE)
