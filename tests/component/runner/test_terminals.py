"""Terminals through the channel."""

from __future__ import annotations

import base64
import time

from tests.component.runner.driver import Driver


class Screen:
    """One terminal as the client sees it."""

    def __init__(self, runner: Driver, name: str = "t1", rows: int = 24, cols: int = 80) -> None:
        self.runner = runner
        self.name = name
        self.seen = b""
        runner.data("pty-open", pty=name, rows=rows, cols=cols)
        self.type("PS1='$ '; stty -echo\n")

    def type(self, text: str) -> None:
        self.runner.send("pty-input", pty=self.name, data=base64.b64encode(text.encode()).decode())

    def wait(self, text: str) -> bytes:
        while text.encode() not in self.seen:
            message = self.runner.expect("pty-output", pty=self.name)
            self.seen += base64.b64decode(message["data"])
        seen, self.seen = self.seen, b""
        return seen


def test_a_shell_on_a_terminal(runner: Driver) -> None:
    screen = Screen(runner, rows=31, cols=97)
    screen.type("tty; stty size; echo $TERM; pwd; echo end-$((1+1))\n")
    seen = screen.wait("end-2").decode()
    assert "/dev/pts/" in seen
    assert "31 97" in seen
    assert "xterm-256color" in seen
    assert str(runner.home) in seen
    runner.send("pty-resize", pty="t1", rows=40, cols=120)
    screen.type("stty size; echo end-$((2+2))\n")
    assert b"40 120" in screen.wait("end-4")


def test_a_shell_that_is_still_starting_learns_its_new_size(runner: Driver) -> None:
    """Clients that name no size change it at once, while the shell has no handler for SIGWINCH yet."""
    (runner.home / ".bash_profile").write_text(
        "trap '' WINCH; sleep 0.5; trap 'echo size-$(stty size)' WINCH; echo ready; read -t 5 line\n"
    )
    runner.data("pty-open", pty="t1", rows=24, cols=80)
    runner.send("pty-resize", pty="t1", rows=40, cols=120)
    output = b""
    while b"size-40 120" not in output:
        output += base64.b64decode(runner.expect("pty-output", pty="t1")["data"])


def test_keys_that_interrupt(runner: Driver) -> None:
    screen = Screen(runner)
    screen.type("echo be-$((1+1)); sleep 60\n")
    screen.wait("be-2")
    time.sleep(0.2)
    screen.type("\x03")
    screen.type("echo after-$((1+2))\n")
    screen.wait("after-3")


def test_a_shell_that_ends_is_started_again(runner: Driver) -> None:
    screen = Screen(runner)
    screen.type("echo pid-$$-; X=1\n")
    first = screen.wait("-\r\n")
    screen.type("exit\n")
    time.sleep(0.2)
    screen.type("stty -echo; echo pid-$$-; echo x:$X:\n")
    assert screen.wait("x::") != first


def test_restart_and_close(runner: Driver) -> None:
    screen = Screen(runner)
    screen.type("trap '' HUP INT TERM; echo on-$((1+1)); sleep 60\n")
    screen.wait("on-2")
    runner.send("pty-restart", pty="t1")
    time.sleep(0.2)
    screen.type("echo again-$((1+1))\n")
    screen.wait("again-2")
    runner.send("pty-close", pty="t1")
    assert runner.expect("pty-closed")["pty"] == "t1"
    runner.send("pty-input", pty="t1", data="eA==")
    runner.send("pty-close", pty="t1")
    assert runner.data("ping")["busy"] is False


def test_a_shell_that_cannot_live_is_given_up(runner: Driver) -> None:
    (runner.home / ".bash_profile").write_text("exit 3\n")
    runner.data("pty-open", pty="dead", rows=24, cols=80)
    assert runner.expect("pty-closed") == {"t": "pty-closed", "pty": "dead", "exitCode": 3}


def test_several_terminals_beside_a_run(runner: Driver) -> None:
    run_id = runner.submit("input()")
    runner.expect("waiting-input")
    for n in range(16):
        runner.data("pty-open", pty=f"n{n}", rows=24, cols=80)
    assert runner.error("pty-open", pty="n16", rows=24, cols=80) == "invalid"
    runner.data("pty-open", pty="n3", rows=50, cols=50)  # open already: resized
    runner.send("input", id=run_id, text="x")
    runner.collect(run_id)
    for n in range(16):
        runner.send("pty-close", pty=f"n{n}")
        runner.expect("pty-closed", pty=f"n{n}")


def test_a_flood_on_a_terminal_is_held_back(runner: Driver) -> None:
    screen = Screen(runner)
    screen.type("yes | head -c 8000000; echo end-$((1+1))\n")
    time.sleep(0.5)
    assert runner.run("'free'").out == "'free'\n"
    total = 0
    tail = b""
    while b"end-2" not in tail:
        data = base64.b64decode(runner.expect("pty-output")["data"])
        total += len(data)
        tail = (tail + data)[-100:]
    assert total > 1_000_000


def test_input_that_nobody_reads_is_bounded(runner: Driver) -> None:
    screen = Screen(runner)
    screen.type("stty raw; echo on-$((1+1)); sleep 1; stty sane; echo off-$((1+1))\n")
    screen.wait("on-2")
    for _ in range(40):
        screen.type("x" * 100_000)
    assert runner.data("ping")["runtime"] == "python"
