"""Runs the checks on one plugin for :mod:`.check`: ``python -m ai.backend.pluginhost.check_process REPORT PARENT``.

Every line on the descriptor REPORT is a :class:`Line`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.discovery import make_plugin
from ai.backend.plugin.programs import is_program
from ai.backend.plugin.testing.accelerator.checks import CHECKS, Check, Outcome, Result, Subject, run_all
from ai.backend.plugin.tracebacks import description_of
from ai.backend.pluginhost import HostedPlugin, launch
from ai.backend.pluginhost.process import HostedCallFailed
from ai.backend.pluginhost.v1.loader import load_any_version

_PR_SET_PDEATHSIG = 1


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the plugin and the checks to run.

    Attributes:
        reference: ``package.module`` or ``package.module:Name``, or the absolute path of an executable; ``path``:
            where to import from.
        settings: of the plugin; those of ``plugins[key]``, as in ``agent.toml``, come first.
        checks: names; empty: all.
    """

    reference: str
    path: tuple[str, ...]
    settings: dict[str, Any] = {}
    plugins: dict[str, dict[str, Any]] = {}
    checks: tuple[str, ...] = ()
    deadline_s: float = 10.0
    may_alter: bool = False
    image: str | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a plugin's description of itself."""

    key: str
    version: str
    verified_on: str | None


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one line of a check process's report; exactly one of the fields is set."""

    description: Description | None = None
    begun: str | None = None
    outcome: Outcome | None = None


async def _it_can_be_loaded(_: Subject) -> None:
    """Loading gives one plugin of this version of the interface, and the plugin accepts the settings.

    A package is imported; an executable describes itself, in a version of the host protocol.
    """


LOADING_CHECK = Check(
    name="it_can_be_loaded",
    proves=" ".join((_it_can_be_loaded.__doc__ or "").split()),
    source="spec 00, entry points; decision 0056",
    run=_it_can_be_loaded,
    is_basic=True,
    needs_start=False,
)
ALL_CHECKS = (LOADING_CHECK, *CHECKS)
"""The checks that the command line runs."""


class _Maker:
    """Makes a new plugin object for each check of a job.

    The plugin runs in this process; an executable has a process for each check.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._class: type[AbstractComputePlugin] | None = None
        self._hosted: list[HostedPlugin] = []

    async def load(self) -> type[AbstractComputePlugin]:
        """Loads the plugin's class, and makes a plugin once to check the settings; returns the class.

        Raises whatever the plugin raises.
        """
        if is_program(self._job.reference):
            hosted_plugin = await self._launch()
            try:
                await hosted_plugin.make()
            finally:
                await self.close()
            return type(hosted_plugin)
        sys.path[:] = self._job.path
        self._class = load_any_version(self._job.reference)
        await self.make()
        return self._class

    async def make(self) -> AbstractComputePlugin:
        if self._class is None:
            return await self._launch()
        return make_plugin(self._class, self._settings(self._class.key))

    async def close(self) -> None:
        """Ends the processes of the plugins made so far."""
        while self._hosted:
            await self._hosted.pop().close()

    async def _launch(self) -> HostedPlugin:
        hosted_plugin = await launch(
            self._job.reference,
            self._settings,
            deadline_s=self._job.deadline_s,
            on_ended=lambda _: None,
            environment=("*",),
        )
        self._hosted.append(hosted_plugin)
        return hosted_plugin

    def _settings(self, key: str) -> dict[str, Any]:
        return {**self._job.plugins.get(key, {}), **self._job.settings}


def _reason_of(error: BaseException) -> str:
    match error:
        case BackendError():
            return error.message
        case HostedCallFailed() | InvalidResponse():
            return str(error)
        case TimeoutError():
            return "it does not answer"
    return description_of(error)


def run(job: Job, send: Callable[[Line], None]) -> None:
    """Loads the plugin of a job and runs its checks. Raises nothing that a plugin may raise."""
    send(Line(begun=LOADING_CHECK.name))
    maker = _Maker(job)
    try:
        plugin_class = asyncio.run(maker.load())
    except (Exception, SystemExit) as e:  # noqa: BLE001  # whatever a plugin raises is the result
        reason = _reason_of(e)
        send(Line(outcome=Outcome(LOADING_CHECK.name, Result.FAILED, reason)))
        return
    verified_on = plugin_class.verified_on
    send(
        Line(
            description=Description(
                key=plugin_class.key,
                version=str(plugin_class.version),
                verified_on=None if verified_on is None else str(verified_on),
            )
        )
    )
    send(Line(outcome=Outcome(LOADING_CHECK.name, Result.PASSED)))

    async def remake(_: AbstractComputePlugin) -> AbstractComputePlugin:
        return await maker.make()

    async def make() -> Subject:
        await maker.close()
        return Subject(
            plugin=await maker.make(),
            remake=remake,
            deadline_s=job.deadline_s,
            may_alter=job.may_alter,
            image=job.image,
        )

    checks = [check for check in CHECKS if not job.checks or check.name in job.checks]

    async def run_checks() -> None:
        await run_all(
            checks,
            make,
            on_begun=lambda check: send(Line(begun=check.name)),
            on_outcome=lambda outcome: send(Line(outcome=outcome)),
        )
        await maker.close()

    asyncio.run(run_checks())


def main() -> None:
    report_fd, parent_pid = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    encoder = msgspec.json.Encoder()

    def send(line: Line) -> None:
        os.write(report_fd, encoder.encode(line) + b"\n")

    run(job, send)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that hangs in a vendor's library must not keep this process.
    os._exit(0)


if __name__ == "__main__":
    main()
