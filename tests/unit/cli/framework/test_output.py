import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from ai.backend.cli.framework.output import Column, MutedScreen, OutputMode, Screen, columns
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.redraw import fit_frame
from ai.backend.cli.framework.terminal import fit_columns, make_panel
from ai.backend.cli.framework.values import describe_slots, relative_time, shorten_id
from ai.backend.cli.session.progress import describe_devices
from ai.backend.cli.session.ps import image_name


def test_no_terminal_obeys_what_others_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    screen, text = Screen(), "a\x1b]0;b\x07\r\nc\x9b1m"
    screen.print_line(text)
    screen.inform(text)
    screen.print_facts([("name", text)])
    screen.error(text)
    printed = "".join(capsys.readouterr())
    assert "\\x1b]0;b\\x07" in printed
    assert all(char.isprintable() for char in printed.replace("\n", ""))


def test_devices_are_told_on_one_line() -> None:
    devices = json.dumps({"npu": [{"device_id": "n\nname  forged", "model_name": "\x1b[31mN"}]})
    assert describe_devices([{"attached_devices": devices}]) == "npu: \\x1b[31mN (n name forged)"
    assert describe_slots({"npu.device": "1"}, {"npu.device": {"display_unit": "U\nx\x07"}}) == "npu.device=1 U x\\x07"


def test_columns_without_room_are_left_out() -> None:
    shown = columns("name | id/short | type/roomy | project/roomy | long/roomy")
    row = ["n" * 30, "i" * 30, "t" * 10, "p" * 4, "l" * 20]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        assert fit_columns(shown, [row], Terminal()) == [0, 1, 2]
        patch.setenv("COLUMNS", "83")
        assert fit_columns(shown, [row], Terminal()) == [0, 1, 2, 3]
    assert fit_columns(shown, [row], io.StringIO()) == [0, 1, 2, 3, 4]


def test_a_frame_replaces_the_screen() -> None:
    assert fit_frame("a\nb\nc\n", 3) == "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J"


def test_people_and_programs_get_different_things(capsys: pytest.CaptureFixture[str]) -> None:
    person, program = Screen(), Screen(OutputMode.JSON)
    person.print_line("result")
    person.inform("meanwhile")
    program.print_line("result")
    program.inform("meanwhile")
    program.print_json({"a": 1})
    printed = capsys.readouterr()
    assert printed.err == "meanwhile\n"
    assert printed.out.startswith("result\n")
    assert json.loads(printed.out.removeprefix("result\n")) == {"a": 1}


def test_an_error_is_one_line_and_a_document_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(OutputMode.JSON).error("it is\nbroken", code="not-found", status=404)
    printed = capsys.readouterr()
    assert printed.err == "backend.ai: it is broken\n"
    assert json.loads(printed.out) == {"error": {"code": "not-found", "message": "it is broken", "status": 404}}


def test_a_muted_screen_still_tells_results(capsys: pytest.CaptureFixture[str]) -> None:
    screen = MutedScreen()
    screen.inform("meanwhile")
    screen.print_line("result")
    assert capsys.readouterr() == ("result\n", "")
    assert screen.is_quiet


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(self):
            yield


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 80 columns, for stdout and stderr."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return terminal


COLUMNS = [
    Column("name", "Name"),
    Column("id", "ID", shorten_id),
    Column("size", "Size", is_number=True),
    Column("enforced", "Enforced", is_wide=True),
]
ROWS: list[dict[str, Any]] = [
    {"name": "한국", "id": "8c8c9921-10a9-4c94-a57c-f27e9a75b735", "size": "1.0 KiB", "enforced": "cpu, memory"},
    {"name": "abcdefgh", "id": None, "size": "12 B", "enforced": None},
]
HOSTILE = "\x1b]0;owned\x07[red]a[/red] [link=http://x]b :boom: \x1b[2J\r\n\u202e\x9b1m[/]"


def test_a_table_shows_the_main_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().print_table(ROWS, COLUMNS)
    assert capsys.readouterr().out.splitlines() == [
        "Name      ID           Size",
        "한국      8c8c9921  1.0 KiB",
        "abcdefgh  -            12 B",
    ]


def test_a_wide_table_shows_all_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(is_wide=True).print_table(ROWS, COLUMNS)
    assert capsys.readouterr().out.splitlines() == [
        "Name      ID                                       Size  Enforced",
        "한국      8c8c9921-10a9-4c94-a57c-f27e9a75b735  1.0 KiB  cpu, memory",
        "abcdefgh  -                                        12 B  -",
    ]


def test_what_is_no_terminal_gets_each_row_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().print_table([{"name": "word " * 500}] * 3, COLUMNS)
    Screen().print_facts([("name", "word " * 500)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.count("word") == 500 for line in lines[1:])


def test_a_terminal_gets_lines_that_fit(terminal: Terminal) -> None:
    with terminal.in_use():
        Screen().print_table([{"name": "word " * 40}, *ROWS], COLUMNS)
    lines = Text.from_ansi(terminal.getvalue()).plain.splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    assert sum("8c8c9921" in line for line in lines) == 1


def test_a_wide_table_is_not_folded(terminal: Terminal) -> None:
    with terminal.in_use():
        Screen(is_wide=True).print_table([{"name": "word " * 40}, *ROWS], COLUMNS)
    assert len(terminal.getvalue().splitlines()) == 4


def test_colours_are_for_terminals_that_want_them(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("status", "Status")]
    with terminal.in_use():
        Screen().print_table([{"status": "RUNNING"}], columns)
        assert "\x1b[32m" in terminal.getvalue()
        terminal.truncate(0)
        monkeypatch.setenv("NO_COLOR", "1")
        Screen().print_table([{"status": "RUNNING"}], columns)
    assert "\x1b[3" not in terminal.getvalue()
    assert "RUNNING" in terminal.getvalue()


def test_pipes_get_no_colours_even_if_a_variable_forces_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    Screen().print_table([{"status": "RUNNING"}], [Column("status", "Status")])
    assert capsys.readouterr().out == "Status\nRUNNING\n"


@pytest.mark.parametrize("is_wide", [False, True])
def test_texts_of_users_are_printed_literally_on_a_terminal(terminal: Terminal, is_wide: bool) -> None:
    screen = Screen(is_wide=is_wide)
    keys = ("name", "image", "tag", "description")
    briefs = (None, image_name, shorten_id, relative_time)
    with terminal.in_use():
        screen.print_table(
            [dict.fromkeys(keys, HOSTILE)], [Column(key, key, brief) for key, brief in zip(keys, briefs, strict=True)]
        )
        screen.print_facts([(HOSTILE, HOSTILE), ("lines", f"{HOSTILE}\n{HOSTILE}")])
        screen.render(make_panel("Announcement", HOSTILE))
        screen.print_line(HOSTILE)
        screen.inform(HOSTILE)
        screen.error(HOSTILE)
    printed = terminal.getvalue()
    styles = re.compile(r"\x1b\[[0-9;]*m")
    assert all(char.isprintable() or char == "\n" for char in styles.sub("", printed))
    assert set(styles.findall(printed)) <= {"\x1b[0m", "\x1b[1m", "\x1b[1;31m"}  # bold headings and our own name
    text = "".join(styles.sub("", printed).split())
    literals = (
        "[red]a[/red]",
        "[link=http://x]b",
        ":boom:",
        "\\x1b]0;owned\\x07",
        "\\x1b[2J",
        "\\u202e",
        "\\x9b1m[/]",
    )
    assert [literal for literal in literals if literal not in text] == []


def test_a_terminal_without_styles_gets_none(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal.in_use():
        Screen().print_table(ROWS, COLUMNS)
    assert "8c8c9921" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


def test_a_transfer_shows_its_bytes_and_leaves_nothing(terminal: Terminal) -> None:
    with terminal.in_use(), TransferBar(Screen()) as bar:
        bar.update("a", 512, 1024)
        bar.update(f"b{HOSTILE}", 0, 1024)
        bar.close()
        assert "512 B of 2.0 KiB" in Text.from_ansi(terminal.getvalue()).plain
        assert "owned\x07" not in terminal.getvalue()
        bar.update("a", 1024, 1024)
    assert "1.0 KiB of 2.0 KiB" in Text.from_ansi(terminal.getvalue()).plain
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_transfer_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with TransferBar(Screen()) as bar:
        bar.update("a", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_table_with_more_columns_than_fit_is_not_folded(terminal: Terminal) -> None:
    columns = [Column(f"k{number}", f"Column {number}", shorten_id) for number in range(9)]
    with terminal.in_use():
        Screen().print_table([dict.fromkeys((column.key for column in columns), "abcdefgh")], columns)
    heading, row = Text.from_ansi(terminal.getvalue()).plain.splitlines()
    assert all(column.heading in heading for column in columns)
    assert row.count("abcdefgh") == 9
