"""`backend.ai accelerator`: checks and writes accelerator plugins."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import Entry, LazyGroup, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import format_cell

if TYPE_CHECKING:
    from ai.backend.pluginhost.check import Report

_LISTING_MODULE = "ai.backend.cli.accelerator.listing:"
accelerator = LazyGroup(
    "accelerator",
    help="Accelerator plugins and devices of this node. No cluster is needed.",
    entries={
        "list": Entry(_LISTING_MODULE + "accelerator_list", "List the plugins that are installed on this node."),
        "top": Entry(_LISTING_MODULE + "accelerator_top", "Show what the devices of this node do now."),
        "show": Entry(_LISTING_MODULE + "accelerator_show", "Show the devices of this node and how they are linked."),
    },
)


@accelerator.command()
@click.argument("plugin", required=False)
@click.option(
    "--program",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="An executable that speaks the host protocol, instead of PLUGIN.",
)
@click.option("--settings", "settings", multiple=True, metavar="FILE|KEY=VALUE", help="Its settings; may be repeated.")
@click.option("--alter-devices", is_flag=True, help="Also cut, reset and switch devices off. Nobody may be using them.")
@click.option("--image", help="Host path of an image that a programmable plugin can load.")
@click.option("--deadline", default=10.0, show_default=True, help="Seconds that one call may take.")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds that one check may take.")
def check(
    plugin: str | None,
    program: Path | None,
    settings: tuple[str, ...],
    alter_devices: bool,
    image: str | None,
    deadline: float,
    timeout: float,
) -> None:
    """Check that PLUGIN, an entry point, a package or a file, or an executable, keeps the promises of a plugin.

    It runs in a process of its own: one that crashes, hangs or exits fails the check that it does so in. FILE is TOML:
    the plugin's settings, or an agent.toml with [plugins.<name>]. Devices are prepared and given back, as for sessions:
    they should be idle. The exit code is 0 if nothing failed.

    \b
      backend.ai accelerator check cuda
      backend.ai accelerator check ./my_plugin.py --settings devices-file=/etc/mine.toml
      backend.ai accelerator check --program ./acme-plugin
    """
    from ai.backend.plugin.testing.accelerator.checks import Result
    from ai.backend.pluginhost.check import check_outside
    from ai.backend.pluginhost.check_process import ALL_CHECKS, Job

    screen = screen_of()
    if (plugin is None) == (program is None):
        raise click.UsageError("name either a PLUGIN or an executable by --program")
    plugin = plugin or str(program)
    reference, import_path = _locate_plugin(plugin) if program is None else (_locate_program(program), ())
    parsed_settings = _parse_settings(settings)
    plugin_settings = parsed_settings.pop("plugins", {}) if isinstance(parsed_settings.get("plugins"), dict) else {}
    check_job = Job(
        reference=reference,
        path=(*import_path, *sys.path),
        settings={} if plugin_settings else parsed_settings,
        plugins=plugin_settings,
        deadline_s=deadline,
        may_alter=alter_devices,
        image=image,
    )
    shows_progress = not screen.is_json and sys.stderr.isatty()
    on_check_begun = partial(_show_progress, total=len(ALL_CHECKS)) if shows_progress else _ignore_progress
    report = asyncio.run(check_outside(check_job, patience_s=timeout, environment=("*",), on_begun=on_check_begun))
    on_check_begun(0, "")
    if screen.is_json:
        screen.print_json(_report_document(plugin, report))
    else:
        outcomes = [outcome for outcome in report.outcomes if outcome.result is not Result.NOT_RUN]
        rows = [{"check": row.check.replace("_", " "), "result": row.result, "reason": row.reason} for row in outcomes]
        screen.print_table(rows, columns("check | result | reason"))
        screen.print_line(f"\n{_summarize(plugin, report)}")
    sys.exit(0 if report.is_good else 1)


def _show_progress(check_number: int, check_name: str, *, total: int) -> None:
    """Shows the running check in one line of standard error. An empty ``check_name`` erases the line."""
    progress_line = f"{check_number}/{total} {check_name.replace('_', ' ')}" if check_name else ""
    click.echo(f"\r\x1b[K{progress_line}", nl=False, err=True)


def _ignore_progress(check_number: int, check_name: str) -> None:
    return


def _locate_plugin(plugin: str) -> tuple[str, tuple[str, ...]]:
    """Returns the module that holds a plugin, and the directories to add to the import path."""
    file_name, colon, class_name = plugin.partition(":")
    if file_name.endswith(".py"):
        plugin_file = Path(file_name).resolve()
        if not plugin_file.is_file():
            raise click.ClickException(f"there is no file {file_name}")
        if not plugin_file.stem.isidentifier():
            raise click.ClickException(f"{plugin_file.name} cannot be imported: rename it to an identifier")
        return f"{plugin_file.stem}{colon}{class_name}", (str(plugin_file.parent),)
    from ai.backend.plugin.discovery import find_plugins

    logging.getLogger("ai.backend").addHandler(logging.NullHandler())  # the check itself says what is wrong
    (plugin_source,) = find_plugins([plugin], (), ())
    return plugin_source.reference or plugin, ()


def _locate_program(program: Path) -> str:
    """Returns the absolute path of an executable."""
    path = program.absolute()
    if not path.is_file():
        raise click.ClickException(f"there is no file {program}")
    return os.path.normpath(path)


def _parse_settings(assignments: tuple[str, ...]) -> dict[str, Any]:
    parsed_settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals_sign, value = assignment.partition("=")
        try:
            if equals_sign:
                parsed_settings[key.strip()] = _parse_toml(value.strip())
            else:
                parsed_settings |= tomllib.loads(Path(assignment).read_text(encoding="utf-8"))
        except OSError as e:
            raise click.ClickException(f"cannot read {assignment}: {e.strerror}") from None
        except ValueError as e:
            raise click.ClickException(f"{assignment} is no TOML: {e}") from None
    return parsed_settings


def _parse_toml(text: str) -> Any:
    """Parses a TOML value; returns a text that is not TOML unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _report_document(plugin: str, report: Report) -> dict[str, Any]:
    return {
        "plugin": plugin,
        **{field: getattr(report.description, field, None) for field in ("key", "version", "verified_on")},
        "passed": report.is_good,
        "checks": [
            {"check": check_outcome.check, "result": check_outcome.result.value, "reason": check_outcome.reason}
            for check_outcome in report.outcomes
        ],
    }


def _summarize(plugin: str, report: Report) -> str:
    from ai.backend.plugin.testing.accelerator.checks import Result

    description = report.description
    result_counts = [f"{count} {result}" for result in Result if (count := report.count(result))]
    title = f"{description.key} {description.version}" if description else plugin
    verified_hardware = description.verified_on if description else None
    verification_text = f"verified on {verified_hardware}" if verified_hardware else "unverified on hardware"
    return format_cell(f"{title}: {', '.join(result_counts)}; {verification_text}")


@accelerator.command()
@click.argument("name")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="Where to write it; default: backendai-NAME, here."
)
def new(name: str, folder: Path | None) -> None:
    """Write a plugin NAME: a package with two pretended devices, its tests, and what it needs to be installed.

    It works in a session at once, and keeps all promises: change it piece by piece into yours.
    """
    from ai.backend.common.errors import BackendError
    from ai.backend.plugin.testing.accelerator.scaffold import write

    target_folder = folder if folder is not None else Path(f"backendai-{name}")
    try:
        written_paths = write(name, target_folder)
    except BackendError as e:
        raise click.ClickException(e.message) from None
    except OSError as e:
        raise click.ClickException(f"cannot write {e.filename or target_folder}: {e.strerror}") from None
    paths = [str(path) for path in written_paths]
    settings = f'allow-compute-plugins = ["{name}"]'
    next_steps = (
        f"Next: pip install -e {target_folder}, backend.ai accelerator check {name}, and {settings} in agent.toml "
        "(for `backend.ai up`: --agent-config agent.toml)."
    )
    screen_of().print_result(
        {"name": name, "dir": str(target_folder), "files": paths}, "\n".join([*paths, "", next_steps])
    )
