"""`backend.ai up` and `backend.ai down`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.infra.files import default_data_dir
from ai.backend.standalone.instance import InstanceLock, already_runs, has_ended, running_pid
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import SESSIONS_GO_ON_MESSAGE, UpOptions

_STOP_TIMEOUT_S = 30.0
_RELOAD_TIMEOUT_S = 120.0

data_dir_option = click.option(
    "--data-dir",
    "-d",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Where everything of the cluster lives.  [default: $XDG_DATA_HOME/backend.ai]",
)


def _parse_ports(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parses two ports as FIRST-LAST."""
    if value is None:
        return None
    first, _, last = value.partition("-")
    if first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65_536:
        return int(first), int(last)
    raise click.BadParameter(f"{value!r} is not FIRST-LAST, such as 10205-10300")


def _layout(data_dir: Path | None) -> Layout:
    return Layout(Path(os.path.abspath((data_dir or default_data_dir()).expanduser())))  # noqa: PTH100  # drops `..`


def _fail(error: BackendError) -> None:
    click.echo(f"backend.ai: {error.message}", err=True)
    sys.exit(1)


@click.command()
@data_dir_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the API listens on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=None, help="Port of the API.  [default: the last, or 8091]"
)
@click.option(
    "--agents", type=click.IntRange(1, 64), default=None, help="How many agents to run.  [default: as last time, or 1]"
)
@click.option(
    "--runtime",
    type=click.Choice(["process", "docker"]),
    default=None,
    help="What sessions are: process trees, or containers of this computer's Docker engine."
    "  [default: as last time, or process]",
)
@click.option("--separate", is_flag=True, help="Run each daemon in a process of its own.")
@click.option(
    "--mock",
    is_flag=False,
    flag_value="default",
    default=None,
    metavar="[FILE]",
    help="Offer mock accelerators: two plain ones, those that a mock-accelerator.toml declares, or `none`."
    "  [default: as last time, or none]",
)
@click.option(
    "--agent-config",
    default=None,
    metavar="PATH",
    help="What agents have of their own, as in agent.toml: a file for all of them, a folder of files such as"
    " i-local-2.toml, or `none`.  [default: as last time, or none]",
)
@click.option(
    "--manager-config",
    default=None,
    metavar="FILE",
    help="What the manager has of its own, as in manager.toml, or `none`.  [default: as last time, or none]",
)
@click.option(
    "--app-ports",
    callback=_parse_ports,
    default=None,
    metavar="FIRST-LAST",
    help="Ports at which apps of sessions open in browsers.  [default: as last time, or 10205-10300]",
)
@click.option(
    "--web-port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port of the console, on this computer's loopback address.  [default: the last, or 8090, or any free one]",
)
@click.option("--detach", is_flag=True, help="Return once the cluster serves, and leave it running.")
def up(data_dir: Path | None, detach: bool, **values: Any) -> None:
    """Start the embedded cluster: manager, agents and everything they need, with no other service."""
    layout = _layout(data_dir)
    try:
        options = UpOptions(**values).with_absolute_paths()
        layout.make()
        if detach:
            _detach(layout, options)
        else:
            serve(layout, options)
    except BackendError as e:
        _fail(e)


def serve(layout: Layout, options: UpOptions, *, ready_fd: int | None = None) -> None:
    """Runs the cluster in this process until SIGINT or SIGTERM.

    Raises Conflict if one runs already, or the port is taken.
    """
    started_at_s = time.monotonic()
    from ai.backend.infra.process.memory import collector_paused, reuse_receive_buffers, share_one_heap

    with collector_paused():  # modules leave few cycles, and each full collection goes through all that are loaded
        from ai.backend.standalone.cluster import run_cluster

    share_one_heap()
    reuse_receive_buffers()
    with InstanceLock(layout.lock):
        try:
            from uvloop import run
        except ImportError:
            run = asyncio.run
        run(run_cluster(layout, options, ready_fd=ready_fd, started_at_s=started_at_s))


def _detach(layout: Layout, options: UpOptions) -> None:
    """Starts a child in a session of its own, waits until it serves or has failed, and prints its message."""
    import subprocess

    if (pid := running_pid(layout.lock)) is not None and not has_ended(pid):
        raise already_runs(layout.root, pid)
    reader, writer = os.pipe()
    log = layout.logs / "up.out"
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "ai.backend.standalone.main", str(layout.root), options.to_json(), str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writer,),
            start_new_session=True,
            cwd="/",
        )
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as message_pipe:
        message = message_pipe.read()
    start_status, _, message_text = message.partition("\n")
    if start_status != "ready":
        child.wait()
        raise Unavailable(message_text.strip() or f"The cluster did not start; its log is {log}.")
    click.echo(message_text, nl=False)


@click.command()
@data_dir_option
def down(data_dir: Path | None) -> None:
    """Stop the embedded cluster. Sessions go on running and are found again by the next `up`."""
    layout = _layout(data_dir)
    pid = running_pid(layout.lock)
    if pid is None:
        click.echo(f"No cluster runs on {layout.root}.")
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        _fail(InvalidInput(f"The cluster on {layout.root} belongs to another user (process {pid})."))
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    # The lock is free a moment before the process has ended.
    while running_pid(layout.lock) is not None or not has_ended(pid):
        if time.monotonic() > deadline:
            _fail(Unavailable(f"The cluster (process {pid}) does not stop; see {layout.logs}."))
        time.sleep(0.05)
    click.echo(f"Stopped the cluster on {layout.root}. {SESSIONS_GO_ON_MESSAGE}")


@click.command()
@data_dir_option
def reload(data_dir: Path | None) -> None:
    """Take over changed plugins and their settings in the agents of the embedded cluster. Sessions go on."""
    from ai.backend.standalone.instance import read_cluster_file
    from ai.backend.standalone.options import agent_ids
    from ai.backend.standalone.reloading import read_report, time_of

    layout = _layout(data_dir)
    pid = running_pid(layout.lock)
    cluster = read_cluster_file(layout.cluster)
    if pid is None or cluster is None:
        _fail(Unavailable(f"No cluster runs on {layout.root}."))
        return
    report_paths = {agent_id: layout.reload_report(agent_id) for agent_id in agent_ids(cluster.agents)}
    report_times = {agent_id: time_of(path) for agent_id, path in report_paths.items()}
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        _fail(InvalidInput(f"The cluster on {layout.root} belongs to another user (process {pid})."))
    deadline, is_refused = time.monotonic() + _RELOAD_TIMEOUT_S, False
    for agent_id, path in report_paths.items():
        while (report := read_report(path, since=report_times[agent_id])) is None:
            if time.monotonic() > deadline:
                _fail(Unavailable(f"The agent {agent_id} has not reloaded; see {layout.logs}."))
            time.sleep(0.05)  # the report is a file of another process
        problems = (
            [report.error]
            if report.error
            else [f"{name}: {problem_text}" for name, problem_text in report.refused.items()]
        )
        for problem in problems:
            click.echo(f"{agent_id}: {problem}", err=True)
        if not problems:
            click.echo(f"{agent_id}: plugins and their settings are taken over.")
        is_refused = is_refused or bool(problems)
    if is_refused:
        sys.exit(1)


def _serve_detached(data_dir: str, options: str, ready_fd: int) -> int:
    """Runs the child of ``up --detach``, and writes its result to ``ready_fd``."""
    os.set_inheritable(ready_fd, False)
    try:
        serve(Layout(Path(data_dir)), msgspec.json.decode(options, type=UpOptions), ready_fd=ready_fd)
    except BackendError as e:
        os.write(ready_fd, f"failed\n{e.message}\n".encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_serve_detached(sys.argv[1], sys.argv[2], int(sys.argv[3])))
