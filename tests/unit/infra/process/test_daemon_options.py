import click
import pytest
from click.testing import CliRunner

from ai.backend.infra.process.daemon import log_level_option


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ([], "None"),
        (["--debug"], "DEBUG"),
        (["--log-level", "warning"], "WARNING"),
        (["--debug", "--log-level", "ERROR"], "ERROR"),
    ],
)
def test_debug_is_a_log_level(arguments: list[str], level: str) -> None:
    @click.command()
    @log_level_option
    def command(log_level: str | None) -> None:
        click.echo(str(log_level))

    assert CliRunner().invoke(command, arguments).output == f"{level}\n"
