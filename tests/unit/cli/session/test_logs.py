import io
import sys
from typing import Any, cast

import pytest

from ai.backend.cli.session.logs import GrowingLog, new_log_text
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
    assert new_log_text(printed, log) == new


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m\r 50%\x1b[K\n\ttab", "\x1b[1;31mred\x1b[0m\r 50%\x1b[K\n\ttab"),
        ("a\x1b]52;c;cm0gLXJmIH4K\x07b\x1b]0;title\x1b\\c", "abc"),
        ("a\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x1b[2J\x1b[H\x1b[1Aover\x1b[6n\x1bPq#0\x1b\\", "over"),
        ("\x9b2Jx\x9d52;c;eA==\x07\x1bc\x00\x7f", "2Jx52;c;eA==c"),
        ("\x1b]52;c;half", "]52;c;half"),
    ],
)
async def test_a_log_controls_no_terminal_but_its_colours(
    log: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        async def get_logs(self, _kernel: str | None) -> str:
            return log

    for out, expected in ((_Terminal(), shown), (io.StringIO(), log)):
        monkeypatch.setattr(sys, "stdout", out)
        await GrowingLog(cast("Any", Session())).print_new()
        monkeypatch.undo()
        assert out.getvalue() == expected


def test_commands_are_shown_without_their_folders() -> None:
    assert short_command("/usr/bin/python3.11 -I /opt/kit/main.py") == "python3.11 -I main.py"
    assert short_command(None) == "-"
    assert len(short_command("x" * 99)) == 34
