"""The tree of commands: what it names exists, and every command behaves as all do."""

from collections.abc import Iterator

import click
import pytest

from ai.backend.cli.framework.lazy import Entry, LazyGroup, LeafCommand
from ai.backend.cli.main import ALIASES, root
from ai.backend.cli.session.ps import ACTIVE_STATUSES, parse_format

DAEMONS = {"up", "down", "reload", "mgr", "ag", "storage", "web"}
DAEMONS |= {"app-proxy-coordinator", "coordinator", "app-proxy-worker", "worker", "kube-acc"}


def leaves(group: LazyGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Entry, click.Command]]:
    for name, entry in group.entries.items():
        if not path and name in DAEMONS:
            continue
        command = entry.load()
        if isinstance(command, LazyGroup):
            yield from leaves(command, (*path, name))
            yield from (((*path, name, leaf), entry, one) for leaf, one in command.commands.items())
        else:
            yield (*path, name), entry, command


assert isinstance(root, LazyGroup)
LEAVES = list(leaves(root))


@pytest.mark.parametrize(("path", "entry", "command"), LEAVES, ids=[" ".join(path) for path, _, _ in LEAVES])
def test_every_command_has_help_and_output(path: tuple[str, ...], entry: Entry, command: click.Command) -> None:
    assert isinstance(command, LeafCommand)
    assert "--output" in {option for param in command.params for option in param.opts}
    assert command.help
    assert entry.help.endswith(".")


def test_the_commands_of_the_issue_are_there() -> None:
    named = {" ".join(path) for path, _, _ in LEAVES}
    top = {"config", "run", "start", "ps", "info", "logs", "rm", "restart", "rename", "events", "watch", "upload"}
    more = {"download", "ls", "interrupt", "status-history", "completion", "complete"}
    assert named >= {*top, *more, "admin agent list", "admin keypair info", "admin session list"}
    assert named >= {f"session {name}" for name in ("create", "destroy", "list", "info", "logs", "upload", "events")}


def test_a_missing_room_is_one_line() -> None:
    with pytest.raises(click.ClickException, match="the manager cannot be loaded"):
        Entry("ai.backend.nowhere:main", "Nothing.", "manager").load()
    with pytest.raises(click.ClickException, match="has no command"):
        Entry("ai.backend.cli.run.ranges:nothing", "Nothing.").load()


def test_a_typo_is_helped() -> None:
    with pytest.raises(click.UsageError, match="did you mean 'start'"):
        root.resolve_command(click.Context(root), ["strat"])


def test_formats_name_known_fields() -> None:
    assert parse_format("id, status,session_id,occupying_slots") == ("id", "status", "occupying_slots")
    with pytest.raises(click.BadParameter, match="there is no field 'color'"):
        parse_format("id,color")
    with pytest.raises(click.BadParameter):
        parse_format(",")


def test_the_default_statuses_are_those_of_the_specification() -> None:
    waiting = {"PENDING", "PREPARING", "PREPARED", "CREATING"}
    assert set(ACTIVE_STATUSES) >= {*waiting, "RUNNING", "RESTARTING", "TERMINATING", "RESIZING", "SUSPENDED", "ERROR"}
    assert not {"TERMINATED", "CANCELLED"} & set(ACTIVE_STATUSES)


def test_the_help_lists_every_command_in_one_section() -> None:
    assert isinstance(root, LazyGroup)
    listed = [name for names in root.sections.values() for name in names]
    assert sorted([*listed, *ALIASES]) == sorted(root.entries)
    text = root.get_help(click.Context(root, info_name="backend.ai"))
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", *(f"{title}:" for title in root.sections)]
