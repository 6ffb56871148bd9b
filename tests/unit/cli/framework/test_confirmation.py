"""What cannot be undone is asked for in one wording, and never done for lack of an answer."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from ai.backend.cli.framework.lazy import LazyGroup, LeafCommand
from ai.backend.cli.framework.params import confirm, yes_option
from ai.backend.cli.main import root


@click.command(cls=LeafCommand)
@yes_option
def purge(yes: bool) -> None:
    confirm("Remove data for good", is_confirmed=yes)
    click.echo("done")


@pytest.mark.parametrize(
    ("arguments", "answer", "code", "said"),
    [
        (["-y"], "", 0, "done"),
        ([], "y\n", 0, "Remove data for good? This cannot be undone [y/N]"),
        ([], "n\n", 1, "Aborted"),
        ([], "", 2, "use -y"),
    ],
)
def test_answers(arguments: list[str], answer: str, code: int, said: str) -> None:
    done = CliRunner().invoke(purge, arguments, input=answer)
    assert (done.exit_code, said in done.output) == (code, True), done.output
    assert ("done" in done.stdout) is (code == 0)
    assert ("[y/N]: \n" in done.output) is (code == 2)


@pytest.mark.parametrize(
    "path",
    [
        "admin announcement delete",
        "admin domain purge",
        "admin group purge",
        "admin keypair delete",
        "admin user purge",
        "vfolder purge",
        "vfolder rm",
    ],
)
def test_commands_that_destroy_take_the_one_option(path: str) -> None:
    command: click.Command = root
    for name in path.split():
        assert isinstance(command, LazyGroup)
        command = command.get_command(click.Context(command), name) or pytest.fail(name)
    (option,) = [param for param in command.params if param.name == "yes"]
    assert isinstance(option, click.Option)
    assert (option.opts, option.help) == (["-y", "--yes"], "Do not ask for confirmation.")
