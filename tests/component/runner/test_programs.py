"""Programs beside the session's code: pipes or a terminal, exit codes, and windows in both directions."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from ai.backend.runner.programs import FRAME_COST_BYTES, MAX_PROGRAMS, WINDOW_BYTES
from tests.component.runner.driver import Driver


class Started:
    """One program as the agent sees it."""

    def __init__(self, runner: Driver, *argv: str, name: str = "p1", **options: Any) -> None:
        self.runner = runner
        self.name = name
        self.out, self.err = b"", b""
        runner.data("program-start", id=name, argv=list(argv), **options)

    def feed(self, data: bytes = b"", *, last: bool = False) -> None:
        self.runner.send("program-input", id=self.name, data=base64.b64encode(data).decode(), last=last)

    def read_one(self, *, takes: bool = True) -> dict[str, Any] | None:
        """Returns the end; None after a piece of output."""
        while True:
            message = self.runner.receive()
            if message.get("id") != self.name:
                continue
            if message["t"] == "program-ended":
                return message
            if message["t"] == "program-output":
                data = base64.b64decode(message["data"])
                if message["stream"] == "stdout":
                    self.out += data
                else:
                    self.err += data
                if takes:
                    self.runner.send("program-taken", id=self.name, bytes=len(data) + FRAME_COST_BYTES)
                return None

    def wait(self) -> int:
        while (ended := self.read_one()) is None:
            pass
        return int(ended["exitCode"])


def test_a_program_on_pipes_has_two_outputs_and_an_exit_code(runner: Driver) -> None:
    program = Started(runner, "sh", "-c", "cat; echo oops >&2; exit 7")
    program.feed(b"typed", last=True)
    assert program.wait() == 7
    assert (program.out, program.err) == (b"typed", b"oops\n")


def test_a_program_on_a_terminal_sees_its_size_and_ends_with_it(runner: Driver) -> None:
    program = Started(runner, "sh", "-c", "tty; stty size; read x; stty size; exit 3", tty=True, rows=31, cols=97)
    while b"31 97" not in program.out:
        program.read_one()
    runner.send("program-resize", id="p1", rows=40, cols=120)
    program.feed(b"\n")
    assert program.wait() == 3
    assert b"/dev/pts/" in program.out
    assert b"40 120" in program.out


def test_without_a_command_it_is_a_shell(runner: Driver) -> None:
    program = Started(runner, tty=True)
    program.feed(b"PS1=; echo $0-$((1+1)); exit 5\n")
    assert program.wait() == 5
    assert b"-2" in program.out


def test_folder_and_variables(runner: Driver) -> None:
    (runner.home / "inner").mkdir()
    program = Started(runner, "sh", "-c", "pwd; echo $MARK", cwd="inner", env={"MARK": "m1"})
    assert program.wait() == 0
    assert program.out == f"{runner.home}/inner\nm1\n".encode()


def test_a_command_that_there_is_not_ends_with_127(runner: Driver) -> None:
    program = Started(runner, "/no/such/program")
    assert program.wait() == 127
    assert b"cannot execute" in program.err


def test_a_death_by_signal_and_a_sent_signal(runner: Driver) -> None:
    program = Started(runner, "sh", "-c", "echo up; sleep 60")
    program.read_one()
    runner.send("program-signal", id="p1", signal="TERM")
    assert program.wait() == 128 + 15


def test_output_waits_for_who_does_not_take_it(runner: Driver) -> None:
    program = Started(runner, "sh", "-c", "head -c 2000000 /dev/zero; touch done")
    while len(program.out) < WINDOW_BYTES:
        program.read_one(takes=False)
    time.sleep(0.3)
    assert len(program.out) < WINDOW_BYTES + 65_536
    assert not (runner.home / "done").exists()
    assert runner.data("ping")["busy"] is False
    runner.send("program-taken", id="p1", bytes=len(program.out) + 64 * FRAME_COST_BYTES)
    assert program.wait() == 0
    assert len(program.out) == 2_000_000


def test_the_end_is_said_although_a_child_holds_the_output(runner: Driver) -> None:
    program = Started(runner, "sh", "-c", "sleep 60 & echo first")
    began = time.monotonic()
    assert program.wait() == 0
    assert program.out == b"first\n"
    assert time.monotonic() - began < 10


def test_the_last_output_of_a_program_that_ended_is_not_lost(runner: Driver) -> None:
    """More than the window is in the pipe, while a child of the program keeps the pipe open."""
    program = Started(runner, "sh", "-c", "sleep 60 & python3 -c 'print(\"x\" * 300000)'")
    while len(program.out) < WINDOW_BYTES:
        program.read_one(takes=False)
    time.sleep(0.3)
    runner.send("program-taken", id="p1", bytes=len(program.out) + 64 * FRAME_COST_BYTES)
    assert program.wait() == 0
    assert len(program.out) == 300_001


def test_an_end_by_the_agent_hangs_up(runner: Driver) -> None:
    program = Started(runner, "sh", "-c", "trap 'touch hung; exit' HUP; echo up; sleep 60 & wait")
    program.read_one()
    runner.send("program-end", id="p1")
    program.wait()
    assert (runner.home / "hung").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"argv": "text\0"}, {"argv": [1]}, {"env": {"A": 1}}, {"rows": 0}, {"cwd": "nowhere"}, {"id": ""}, {"id": 4}],
    ids=str,
)
def test_what_is_wrong_is_refused(runner: Driver, wrong: dict[str, Any]) -> None:
    reply = runner.request("program-start", **{"id": "p1", "argv": ["true"], **wrong})
    assert not reply["ok"]
    assert Started(runner, "true", name="p2").wait() == 0


def test_as_many_as_may_be(runner: Driver) -> None:
    programs = [Started(runner, "sleep", "60", name=f"p{number}") for number in range(MAX_PROGRAMS)]
    assert not runner.request("program-start", id="more", argv=["true"])["ok"]
    runner.send("program-signal", id="p0", signal="KILL")
    assert programs[0].wait() == 137
    assert Started(runner, "true", name="more").wait() == 0
