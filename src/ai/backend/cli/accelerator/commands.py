"""`backend.ai accelerator`: for those who write plugins, and those who install them."""

from __future__ import annotations

import asyncio
import logging
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import Entry, LazyGroup, Leaf, screen_of
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.values import cell

if TYPE_CHECKING:
    from ai.backend.pluginhost.check import Report

_SHOW = "ai.backend.cli.accelerator.listing:"
_CHECK_COLUMNS = (Column("check", "Check"), Column("result", "Result"), Column("reason", "Reason"))

accelerator = LazyGroup(
    "accelerator",
    help="Accelerator plugins and devices of this node. No cluster is needed.",
    entries={
        "list": Entry(_SHOW + "accelerator_list", "List the plugins that are installed on this node."),
        "show": Entry(_SHOW + "accelerator_show", "Show the devices of this node and how they are linked."),
        "check": Entry("ai.backend.cli.accelerator.commands:check", "Check that a plugin keeps its promises."),
        "new": Entry("ai.backend.cli.accelerator.commands:new", "Write a new plugin that works at once."),
    },
)


@click.command(cls=Leaf)
@click.argument("plugin")
@click.option("--settings", "settings", multiple=True, metavar="FILE|KEY=VALUE", help="Its settings; may be repeated.")
@click.option("--alter-devices", is_flag=True, help="Also cut, reset and switch devices off. Nobody may be using them.")
@click.option("--image", help="Host path of an image that a programmable plugin can load.")
@click.option("--deadline", default=10.0, show_default=True, help="Seconds that one call may take.")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds that one check may take.")
def check(
    plugin: str, settings: tuple[str, ...], alter_devices: bool, image: str | None, deadline: float, timeout: float
) -> None:
    """Check that PLUGIN, an entry point, a package or a file, keeps the promises of a plugin.

    It runs in a process of its own: one that crashes, hangs or exits fails the check that it does so in. FILE is TOML:
    the plugin's settings, or an agent.toml with [plugins.<name>]. Devices are prepared and given back, as for sessions:
    they should be idle. The exit code is 0 if nothing failed.

    \b
      backend.ai accelerator check cuda
      backend.ai accelerator check ./my_plugin.py --settings devices-file=/etc/mine.toml
    """
    from ai.backend.plugin.testing.accelerator.checks import Result
    from ai.backend.pluginhost.check import check_outside
    from ai.backend.pluginhost.check_process import Job

    screen = screen_of()
    reference, path = _locate(plugin)
    values = _settings(settings)
    plugins = values.pop("plugins", {}) if isinstance(values.get("plugins"), dict) else {}
    job = Job(
        reference=reference,
        path=(*path, *sys.path),
        settings={} if plugins else values,
        plugins=plugins,
        deadline_s=deadline,
        may_alter=alter_devices,
        image=image,
    )
    report = asyncio.run(check_outside(job, patience_s=timeout, environment=("*",)))
    if screen.is_json:
        screen.json(_document(plugin, report))
    else:
        outcomes = [outcome for outcome in report.outcomes if outcome.result is not Result.NOT_RUN]
        rows = [{"check": o.check.replace("_", " "), "result": o.result, "reason": o.reason} for o in outcomes]
        screen.table(rows, _CHECK_COLUMNS)
        screen.say(f"\n{_summary(plugin, report)}")
    sys.exit(0 if report.is_good else 1)


def _locate(plugin: str) -> tuple[str, tuple[str, ...]]:
    """Return the module to import, and the directories to add to the import path."""
    if plugin.endswith(".py"):
        file = Path(plugin).resolve()
        if not file.is_file():
            raise click.ClickException(f"there is no file {plugin}")
        if not file.stem.isidentifier():
            raise click.ClickException(f"{file.name} cannot be imported: rename it to an identifier")
        return file.stem, (str(file.parent),)
    from ai.backend.plugin.discovery import find_plugins

    logging.getLogger("ai.backend").addHandler(logging.NullHandler())  # the check itself says what is wrong
    (source,) = find_plugins([plugin], (), ())
    return source.reference or plugin, ()


def _settings(texts: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        key, mark, value = text.partition("=")
        try:
            if mark:
                values[key.strip()] = _value(value.strip())
            else:
                values |= tomllib.loads(Path(text).read_text(encoding="utf-8"))
        except OSError as e:
            raise click.ClickException(f"cannot read {text}: {e.strerror}") from None
        except ValueError as e:
            raise click.ClickException(f"{text} is no TOML: {e}") from None
    return values


def _value(text: str) -> Any:
    """Returns a value of TOML, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _document(plugin: str, report: Report) -> dict[str, Any]:
    description = report.description
    return {
        "plugin": plugin,
        "key": description.key if description else None,
        "version": description.version if description else None,
        "verified_on": description.verified_on if description else None,
        "passed": report.is_good,
        "checks": [{"check": o.check, "result": o.result.value, "reason": o.reason} for o in report.outcomes],
    }


def _summary(plugin: str, report: Report) -> str:
    from ai.backend.plugin.testing.accelerator.checks import Result

    description = report.description
    counts = [f"{number} {result}" for result in Result if (number := report.count(result))]
    name = f"{description.key} {description.version}" if description else plugin
    verified = (
        f"verified on {description.verified_on}"
        if description and description.verified_on
        else "unverified on hardware"
    )
    return cell(f"{name}: {', '.join(counts)}; {verified}")


@click.command(cls=Leaf)
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

    screen = screen_of()
    target = folder if folder is not None else Path(f"backendai-{name}")
    try:
        written = write(name, target)
    except BackendError as e:
        raise click.ClickException(e.message) from None
    except OSError as e:
        raise click.ClickException(f"cannot write {e.filename or target}: {e.strerror}") from None
    if screen.is_json:
        screen.json({"name": name, "dir": str(target), "files": [str(path) for path in written]})
        return
    for path in written:
        screen.say(str(path))
    screen.say(
        f"\nNext: pip install -e {target}, backend.ai accelerator check {name}, "
        f'and allow-compute-plugins = ["{name}"] in agent.toml.'
    )
