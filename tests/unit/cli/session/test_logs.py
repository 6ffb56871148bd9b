import pytest

from ai.backend.cli.session.logs import new_part
from ai.backend.cli.session.top import short_command

NUMBERS = "".join(f"{number}\n" for number in range(2000))


@pytest.mark.parametrize(
    ("printed", "log", "new"),
    [
        ("", "ab", "ab"),
        ("ab", "ab", ""),
        ("ab", "abc", "c"),
        (NUMBERS, NUMBERS[2000:] + "new", "new"),
        ("ab", "x", "x"),
    ],
)
def test_only_new_output_is_printed(printed: str, log: str, new: str) -> None:
    assert new_part(printed, log) == new


def test_commands_are_shown_without_their_folders() -> None:
    assert short_command("/usr/bin/python3.11 -I /opt/kit/main.py") == "python3.11 -I main.py"
    assert short_command(None) == "-"
    assert len(short_command("x" * 99)) == 34
