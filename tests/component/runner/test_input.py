"""Input of the client to programs that read their stdin, in batch mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver, Message, Result

END = "\x04"


def run_with(runner: Driver, command: str, *lines: str) -> Result:
    """Runs a command; answers its questions with the lines, and then with the end of the input."""
    answers = iter(lines)

    def answer(message: Message) -> None:
        if message["t"] == "waiting-input":
            assert message["is_password"] is False
            runner.send("input", id=message["id"], text=next(answers, END))

    return runner.collect(runner.submit(mode="batch", options={"exec": command}), answer)


def test_a_line_for_python(runner: Driver, home: Path) -> None:
    (home / "m.py").write_text("print('hello', input('name? '))\n")
    result = run_with(runner, "python3 m.py", "hey")
    assert result.out == "name? hello hey\n"
    assert len(result.of("waiting-input")) == 1
    kinds = [m["t"] for m in result.messages]
    assert kinds.index("console") < kinds.index("waiting-input")


def test_the_end_of_the_input(runner: Driver) -> None:
    result = run_with(runner, "cat; echo end", "one", "\u00e9\u20ac")
    assert result.out == "one\n\u00e9\u20ac\nend\n"
    assert len(result.of("waiting-input")) == 3
    assert run_with(runner, "wc -l").out.strip() == "0"


@pytest.mark.parametrize(
    "command",
    [
        "read x; echo got $x",
        "(read x; echo got $x)",
        "sh -c 'head -n1' | sed 's/^/got /'",
        "python3 -c 'import select, sys; select.select([sys.stdin], [], []); print(\"got\", input())'",
        "python3 -c 'import select, sys; p = select.poll(); p.register(0); p.poll(); print(\"got\", input())'",
        "python3 -c 'import select; p = select.epoll(); p.register(0); p.poll(); print(\"got\", input())'",
        "python3 -c 'import threading; threading.Thread(target=lambda: print(\"got\", input())).start()'",
        "exec 5<&0; read x <&5; echo got $x",
    ],
)
def test_every_way_to_wait(runner: Driver, command: str) -> None:
    assert run_with(runner, command, "it").out == "got it\n"


@pytest.mark.needs("node")
def test_a_line_for_node(runner: Driver) -> None:
    program = 'require("readline").createInterface({input: process.stdin}).on("line", l => console.log("got", l))'
    assert run_with(runner, f"node -e '{program}'", "it").out == "got it\n"


def test_programs_that_do_not_read_are_not_asked(runner: Driver) -> None:
    server = "import socket, select; s = socket.create_server(('127.0.0.1', 0)); select.select([0, s], [], [], 0.8)"
    for command in ("sleep 0.8", f'python3 -c "{server}"', "cat </dev/null", "sleep 0.6 | cat"):
        assert runner.batch(exec=command).of("waiting-input") == []


def test_without_input_the_program_reads_nothing(runner: Driver) -> None:
    result = runner.batch(exec="cat; echo end", build="cat", input=False)
    assert (result.out, result.of("waiting-input")) == ("end\n", [])
    assert runner.collect(runner.submit(mode="batch", options={"build": "cat; echo built"})).out == "built\n"


def test_long_lines_and_programs_that_go_away(runner: Driver) -> None:
    assert run_with(runner, "wc -c", "x" * 500_000).out.strip() == "500001"
    assert run_with(runner, "head -c1; exec 0<&-; sleep 0.3; echo end", "x" * 500_000).out == "xend\n"
    assert runner.data("ping")["busy"] is False


def test_a_waiting_program_can_be_interrupted_and_cancelled(runner: Driver) -> None:
    for message in ({"kind": "interrupt"}, {"kind": "cancel", "id": "run-2", "reason": "user"}):
        run_id = runner.submit(mode="batch", options={"exec": "cat"})
        runner.expect("waiting-input", id=run_id)
        runner.send(**message)
        assert runner.collect(run_id).finished["signal"] in (2, 9)


def test_a_snippet_of_a_compiled_language(start: Callable[..., Driver]) -> None:
    runner = start("c")
    run_id = runner.submit('char s[9]; scanf("%8s", s); printf("got %s\\n", s);')
    runner.expect("waiting-input", id=run_id)
    runner.send("input", id=run_id, text="it")
    assert runner.collect(run_id).out == "got it\n"


def test_the_end_of_the_input_of_python_code(runner: Driver) -> None:
    run_id = runner.submit(
        "import sys\nlines = list(sys.stdin)\ntry: input()\nexcept EOFError: lines.append('end')\nlines"
    )
    for text in ("one", END, END):
        runner.expect("waiting-input", id=run_id)
        runner.send("input", id=run_id, text=text)
    assert runner.collect(run_id).out == "['one\\n', 'end']\n"
