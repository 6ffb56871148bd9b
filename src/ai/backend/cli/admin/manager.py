"""Commands about the installation: `backend.ai admin manager|announcement|watcher|etcd`, `backend.ai server-logs`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from ai.backend.cli.framework.lazy import Entry, LazyGroup, screen_of
from ai.backend.cli.framework.objects import change, print_reply, show_object
from ai.backend.cli.framework.params import confirm, yes_option
from ai.backend.cli.framework.values import iso_time, readable_time

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

announcement = LazyGroup("announcement", help="The announcement for all users.")
manager = LazyGroup(
    "manager",
    help="The manager.",
    entries={"scheduler": Entry("ai.backend.cli.admin.manager:scheduler", "Which agents take sessions.")},
)
scheduler = LazyGroup("scheduler", help="Which agents take sessions.")
server_logs = LazyGroup("server-logs", help="Errors that clients reported.")
watcher = LazyGroup("watcher", help="Start and stop agents by their watchers.")
etcd = LazyGroup("etcd", help="The shared configuration. In the embedded cluster it lies in the database.")
_AGENT_ARGUMENT = click.argument("agent")
_AGENTS_ARGUMENT = click.argument("agent_ids", nargs=-1, required=True)
_prefix_option = click.option("--prefix", "-p", is_flag=True, help="All keys at and below KEY.")
_POLL_S = 3.0


@manager.command("status")
def manager_status() -> None:
    """Show whether the manager takes sessions, and how many it has."""
    show_object(lambda api: api.Manager.status(), "the manager has no status")


@manager.command("freeze")
@click.option("--wait", is_flag=True, help="Wait until no sessions are left, then freeze.")
@click.option("--force-kill", is_flag=True, help="End all sessions.")
@yes_option
def freeze(wait: bool, force_kill: bool, yes: bool) -> None:
    """Take no new sessions; existing sessions go on."""
    if wait and force_kill:
        raise click.UsageError("--wait and --force-kill exclude each other")
    confirm("End all sessions of all users", is_confirmed=yes or not force_kill)
    screen = screen_of()

    async def freeze_and_wait(api: AsyncSession) -> None:
        while wait and (remaining_sessions := int((await api.Manager.status())["active_sessions"])):
            screen.inform(f"{remaining_sessions} sessions are left")
            await api.transport.pause(_POLL_S)  # the server has no event for the end of all sessions
        await api.Manager.freeze(force_kill=force_kill)

    change(freeze_and_wait, {"status": "frozen"}, "frozen; sessions end" if force_kill else "frozen")


@manager.command("unfreeze")
def unfreeze() -> None:
    """Take new sessions again."""
    change(lambda api: api.Manager.unfreeze(), {"status": "running"}, "running")


def _run_scheduler_op(
    op: Literal["include-agents", "exclude-agents"], agent_ids: tuple[str, ...], result_text: str
) -> None:
    request_document = {"op": op, "args": list(agent_ids)}
    change(
        lambda api: api.Manager.scheduler_op(op, agent_ids), request_document, f"{', '.join(agent_ids)}: {result_text}"
    )


@scheduler.command("include-agents")
@_AGENTS_ARGUMENT
def include_agents(agent_ids: tuple[str, ...]) -> None:
    """Let agents take new sessions."""
    _run_scheduler_op("include-agents", agent_ids, "new sessions are taken")


@scheduler.command("exclude-agents")
@_AGENTS_ARGUMENT
def exclude_agents(agent_ids: tuple[str, ...]) -> None:
    """Let agents take no new sessions, also after restarts; running sessions go on."""
    _run_scheduler_op("exclude-agents", agent_ids, "no new sessions are taken")


# ---- watchers ----


@watcher.command("status")
@_AGENT_ARGUMENT
def watcher_status(agent: str) -> None:
    """Show whether the AGENT runs, as its watcher sees it."""
    show_object(lambda api: api.AgentWatcher.get_status(agent), f"there is no watcher of {agent}")


def _add_watcher_command(verb: str, past_verb: str, help_: str) -> None:
    def command(agent: str) -> None:
        async def call_watcher(api: AsyncSession) -> Any:
            return await getattr(api.AgentWatcher, f"agent_{verb}")(agent)

        change(call_watcher, {"agent_id": agent}, f"{past_verb} {agent}")

    watcher.command(f"agent-{verb}", help=help_)(_AGENT_ARGUMENT(command))


_add_watcher_command("start", "started", "Start the AGENT.")
_add_watcher_command("stop", "stopped", "Stop the AGENT; its sessions go on.")
_add_watcher_command("restart", "restarted", "Restart the AGENT; its sessions go on.")


# ---- announcements ----


@announcement.command("get")
def announcement_get() -> None:
    """Show the announcement."""

    def describe(reply: dict[str, Any]) -> str:
        return str(reply.get("message") or "") if reply.get("enabled") else "There is no announcement."

    print_reply(lambda api: api.Manager.get_announcement(), describe)


@announcement.command("update")
@click.option("-m", "--message", help="Markdown; an editor is opened without it.")
def announcement_update(message: str | None) -> None:
    """Announce a message to all users."""
    if message is None and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal for an editor, use -m")
    announcement_text = message if message is not None else click.edit("")
    if announcement_text is None or not announcement_text.strip():
        raise click.UsageError("the announcement is empty")
    change(
        lambda api: api.Manager.update_announcement(True, announcement_text),
        {"enabled": True, "message": announcement_text},
        "announced",
    )


@announcement.command("delete")
@yes_option
def announcement_delete(yes: bool) -> None:
    """Remove the announcement."""
    confirm("Remove the announcement", is_confirmed=yes)
    change(lambda api: api.Manager.update_announcement(False), {"enabled": False}, "removed")


@announcement.command("dismiss")
def announcement_dismiss() -> None:
    """Do not show the last announcement again."""
    from ai.backend.cli.framework.announcements import dismiss

    screen = screen_of()
    if not dismiss():
        screen.fail("no announcement was seen yet")
    screen.print_result({"dismissed": True}, "dismissed")


# ---- reported errors ----


@server_logs.command("list")
@click.option("--mark-read", is_flag=True, help="Mark those of this page as read.")
@click.option("-l", "--page-size", type=click.IntRange(1, 100), default=20, show_default=True, help="Errors of a page.")
@click.option("-n", "--page-number", type=click.IntRange(1), default=1, show_default=True, help="Which page.")
async def server_logs_list(api: AsyncSession, mark_read: bool, page_size: int, page_number: int) -> None:
    """List reported errors, newest first; administrators see those of their domain."""
    screen = screen_of()
    page = await api.ServerLog.list(mark_read, page_size, page_number)
    if screen.is_json:
        screen.print_json(page)
    elif page["logs"]:
        screen.print_line("\n\n".join(map(_describe_error, page["logs"])))
    else:
        screen.inform("no errors were reported")


def _describe_error(error: dict[str, Any]) -> str:
    time_text = readable_time(iso_time(error["created_at"]))
    request_text = f"{error['request_status'] or ''} {error['request_url'] or ''}".strip()
    lines = [
        f"{time_text} {error['severity']} from {error['source']}, user {error['user']}",
        request_text,
        error["message"],
    ]
    return "\n".join(line for line in [*lines, error["traceback"] or ""] if line)


# ---- shared configuration ----


@etcd.command("get")
@click.argument("key")
@_prefix_option
def get(key: str, prefix: bool) -> None:
    """Show the value of KEY."""

    def describe(value: Any) -> str:
        if value is None or value == {}:
            return f"{key} is not set."
        return value if isinstance(value, str) else json.dumps(value, indent=2)

    print_reply(lambda api: api.EtcdConfig.get(key, prefix=prefix), describe)


@etcd.command("set")
@click.argument("key")
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Set KEY to VALUE; a JSON object sets every key in it.

    Agents read settings of their plugins when they start:

      backend.ai admin etcd set config/plugins/accelerator/mock/allocation_mode fractional
    """
    change(lambda api: api.EtcdConfig.set(key, _parse_json_or_text(value)), {"result": "ok"}, f"{key} is set.")


def _parse_json_or_text(value: str) -> Any:
    if not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as e:
        raise click.BadParameter(f"not a JSON object: {e}", param_hint="VALUE") from None


@etcd.command("delete")
@click.argument("key")
@_prefix_option
def delete(key: str, prefix: bool) -> None:
    """Remove KEY."""
    change(lambda api: api.EtcdConfig.delete(key, prefix=prefix), {"result": "ok"}, f"{key} is removed.")
