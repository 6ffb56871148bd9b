"""`backend.ai admin manager|announcement|watcher` and `backend.ai server-logs`: the installation as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from ai.backend.cli.framework.confirmation import confirm, yes_option
from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, screen_of
from ai.backend.cli.framework.objects import change, print_reply, show_one
from ai.backend.cli.framework.printing import print_result
from ai.backend.cli.framework.values import iso_time, readable_time

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

announcement = LazyGroup("announcement", help="The announcement for all users.")
scheduler = LazyGroup("scheduler", help="Which agents take sessions.")
server_logs = LazyGroup("server-logs", help="Errors that clients reported.")
watcher = LazyGroup("watcher", help="Start and stop agents by their watchers.")
_AGENT = click.argument("agent")
_AGENTS = click.argument("agent_ids", nargs=-1, required=True)
_POLL_S = 3.0


@click.command("freeze", cls=Leaf)
@click.option("--wait", is_flag=True, help="Wait until no sessions are left, then freeze.")
@click.option("--force-kill", is_flag=True, help="End all sessions.")
def freeze(wait: bool, force_kill: bool) -> None:
    """Take no new sessions; those that are there go on."""
    if wait and force_kill:
        raise click.UsageError("--wait and --force-kill exclude each other")
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        import asyncio

        while wait and (remaining := int((await api.Manager.status())["active_sessions"])):
            screen.inform(f"{remaining} sessions are left")
            await asyncio.sleep(_POLL_S)  # the server tells of no end of all sessions
        await api.Manager.freeze(force_kill=force_kill)

    change(work, {"status": "frozen"}, "frozen; sessions end" if force_kill else "frozen")


@click.command("unfreeze", cls=Leaf)
def unfreeze() -> None:
    """Take new sessions again."""
    change(lambda api: api.Manager.unfreeze(), {"status": "running"}, "running")


def _operate(op: Literal["include-agents", "exclude-agents"], agent_ids: tuple[str, ...], text: str) -> None:
    change(lambda api: api.Manager.scheduler_op(op, agent_ids), {"op": op, "args": list(agent_ids)}, text)


@scheduler.command("include-agents", cls=Leaf)
@_AGENTS
def include_agents(agent_ids: tuple[str, ...]) -> None:
    """Let agents take new sessions."""
    _operate("include-agents", agent_ids, f"{', '.join(agent_ids)}: new sessions are taken")


@scheduler.command("exclude-agents", cls=Leaf)
@_AGENTS
def exclude_agents(agent_ids: tuple[str, ...]) -> None:
    """Let agents take no new sessions, also after restarts; what runs there goes on."""
    _operate("exclude-agents", agent_ids, f"{', '.join(agent_ids)}: no new sessions are taken")


# ---- watchers ----


@watcher.command("status", cls=Leaf)
@_AGENT
def watcher_status(agent: str) -> None:
    """Show whether the AGENT runs, as its watcher sees it."""
    show_one(lambda api: api.AgentWatcher.get_status(agent), f"there is no watcher of {agent}")


@watcher.command("agent-start", cls=Leaf)
@_AGENT
def watcher_start(agent: str) -> None:
    """Start the AGENT."""
    change(lambda api: api.AgentWatcher.agent_start(agent), {"agent_id": agent}, f"started {agent}")


@watcher.command("agent-stop", cls=Leaf)
@_AGENT
def watcher_stop(agent: str) -> None:
    """Stop the AGENT; its sessions go on."""
    change(lambda api: api.AgentWatcher.agent_stop(agent), {"agent_id": agent}, f"stopped {agent}")


@watcher.command("agent-restart", cls=Leaf)
@_AGENT
def watcher_restart(agent: str) -> None:
    """Restart the AGENT; its sessions go on."""
    change(lambda api: api.AgentWatcher.agent_restart(agent), {"agent_id": agent}, f"restarted {agent}")


# ---- announcements ----


@announcement.command("get", cls=Leaf)
def announcement_get() -> None:
    """Show the announcement."""

    def describe(reply: dict[str, Any]) -> str:
        return str(reply.get("message") or "") if reply.get("enabled") else "There is no announcement."

    print_reply(lambda api: api.Manager.get_announcement(), describe)


@announcement.command("update", cls=Leaf)
@click.option("-m", "--message", help="Markdown; an editor is opened without it.")
def announcement_update(message: str | None) -> None:
    """Announce a message to all users."""
    text = message if message is not None else click.edit("")
    if text is None or not text.strip():
        raise click.UsageError("the announcement is empty")
    change(lambda api: api.Manager.update_announcement(True, text), {"enabled": True, "message": text}, "announced")


@announcement.command("delete", cls=Leaf)
@yes_option
def announcement_delete(yes: bool) -> None:
    """Remove the announcement."""
    confirm("Remove the announcement", is_confirmed=yes)
    change(lambda api: api.Manager.update_announcement(False), {"enabled": False}, "removed")


@announcement.command("dismiss", cls=Leaf)
def announcement_dismiss() -> None:
    """Do not show the last announcement again."""
    from ai.backend.cli.framework.announcements import dismiss

    screen = screen_of()
    if not dismiss():
        screen.fail("no announcement was seen yet")
    print_result(screen, {"dismissed": True}, "dismissed")


# ---- reported errors ----


@server_logs.command("list", cls=Leaf)
@click.option("--mark-read", is_flag=True, help="Mark those of this page as read.")
@click.option("-l", "--page-size", type=click.IntRange(1, 100), default=20, show_default=True, help="Errors of a page.")
@click.option("-n", "--page-number", type=click.IntRange(1), default=1, show_default=True, help="Which page.")
def server_logs_list(mark_read: bool, page_size: int, page_number: int) -> None:
    """List reported errors, newest first; administrators see those of their domain."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        page = await api.ServerLog.list(mark_read, page_size, page_number)
        if screen.is_json:
            screen.json(page)
        elif page["logs"]:
            screen.say("\n\n".join(map(_describe_error, page["logs"])))
        else:
            screen.inform("no errors were reported")

    call(screen, work)


def _describe_error(error: dict[str, Any]) -> str:
    at = readable_time(iso_time(error["created_at"]))
    request = f"{error['request_status'] or ''} {error['request_url'] or ''}".strip()
    lines = [f"{at} {error['severity']} from {error['source']}, user {error['user']}", request, error["message"]]
    return "\n".join(line for line in [*lines, error["traceback"] or ""] if line)
