"""Input, interrupt, cancel, restart, queueing: what the agent can do to a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver, Message


def answering(runner: Driver, *answers: str) -> Callable[[Message], None]:
    left = list(answers)

    def answer(message: Message) -> None:
        if message["t"] == "waiting-input":
            runner.send("input", id=message["id"], text=left.pop(0))

    return answer


def test_input(runner: Driver) -> None:
    run_id = runner.submit("print('What is your name?')\nname = input('>> ')\nprint(f'Hello, {name}!')")
    result = runner.collect(run_id, answering(runner, "Lablup"))
    kinds = [m["t"] for m in result.messages]
    assert kinds == ["started", "console", "waiting-input", "console", "finished"]
    assert result.messages[1]["items"] == [["stdout", "What is your name?\n>> "]]
    assert result.messages[2]["is_password"] is False
    assert result.messages[3]["items"] == [["stdout", "Hello, Lablup!\n"]]


def test_password_is_asked_as_such(runner: Driver) -> None:
    run_id = runner.submit("import getpass\nprint(len(getpass.getpass('Secret: ')), getpass.getuser() != '')")
    result = runner.collect(run_id, answering(runner, "hunter2"))
    assert result.of("waiting-input")[0]["is_password"] is True
    assert result.out == "Secret: 7 True\n"


@pytest.mark.parametrize(
    ("code", "answers", "out"),
    [
        ("import sys; print(repr(sys.stdin.readline()))", ["a"], "'a\\n'\n"),
        ("import sys; print(repr(sys.stdin.read()))", ["\u00e9\U0001f600"], "'\u00e9\U0001f600\\n'\n"),
        ("print(input() + input())", ["1", ""], "1\n"),
        ("import threading\nt = threading.Thread(target=lambda: print(input()))\nt.start(); t.join()", ["x"], "x\n"),
        ("import sys; sys.stdin.close(); print(input())", ["still"], "still\n"),
    ],
)
def test_other_ways_to_read(runner: Driver, code: str, answers: list[str], out: str) -> None:
    assert runner.collect(runner.submit(code), answering(runner, *answers)).out == out


def test_input_that_nobody_asked_for_is_ignored(runner: Driver) -> None:
    runner.send("input", id="nobody", text="x")
    run_id = runner.submit("try:\n    input('a')\nexcept KeyboardInterrupt:\n    print(input('b'))")
    runner.expect("waiting-input")
    runner.send("input", id="another", text="wrong")
    runner.send("interrupt")
    runner.expect("waiting-input")
    runner.send("input", id=run_id, text="right")
    runner.send("input", id=run_id, text="late")
    assert runner.collect(run_id).out.endswith("right\n")
    result = runner.collect(runner.submit("input()"), answering(runner, "fresh"))
    assert result.out == "'fresh'\n"


@pytest.mark.parametrize(
    "code",
    [
        "import time; print('on', flush=True); time.sleep(60)",
        "print('on', flush=True)\nwhile True: pass",
        "import subprocess; print('on', flush=True); subprocess.run(['sleep', '60'])",
        "import os; print('on', flush=True); os.system('sleep 60'); raise KeyboardInterrupt",
        "print('on', flush=True); input()",
        "print('on', flush=True)\nwhile True: print('y' * 1000)",
        "import threading; print('on', flush=True); threading.Event().wait()",
        "import asyncio\nprint('on', flush=True)\nawait asyncio.sleep(60)",
    ],
)
def test_interrupt(runner: Driver, code: str) -> None:
    runner.run("kept = 5")
    run_id = runner.submit(code)
    runner.until_output(run_id, "on")
    time.sleep(0.1)  # into the blocking call
    runner.send("interrupt")
    result = runner.collect(run_id, timeout=10)
    assert result.finished["reason"] is None
    assert result.err.rstrip().endswith("KeyboardInterrupt")
    assert runner.run("kept").out == "5\n"


def test_interrupt_of_nothing_is_harmless(runner: Driver) -> None:
    runner.run("kept = 5")
    for _ in range(20):
        runner.send("interrupt")
    assert runner.run("kept").out == "5\n"
    for _ in range(50):
        run_id = runner.submit("pass")
        runner.send("interrupt")
        runner.collect(run_id)
    assert runner.run("kept").out == "5\n"


def test_an_ignored_interrupt_can_be_followed_by_a_cancel(runner: Driver) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on', flush=True)\nwhile True: pass"
    run_id = runner.submit(code)
    runner.until_output(run_id, "on")
    runner.send("interrupt")
    time.sleep(0.1)
    runner.send("cancel", id=run_id, reason="exec-timeout")
    finished = runner.collect(run_id).finished
    assert (finished["reason"], finished["signal"], finished["exitCode"]) == ("cancelled:exec-timeout", 9, 137)
    assert runner.run("1").out == "1\n"


def test_cancel_takes_subprocesses_along(runner: Driver, home: Path) -> None:
    run_id = runner.submit(
        "import subprocess\nprint('on', flush=True)\nsubprocess.run('sleep 1; touch survived', shell=True)"
    )
    runner.until_output(run_id, "on")
    time.sleep(0.1)
    runner.send("cancel", id=run_id, reason="x")
    runner.collect(run_id)
    time.sleep(1.2)
    assert not (home / "survived").exists()


def test_runs_queue_in_order_and_can_be_cancelled_there(runner: Driver) -> None:
    first = runner.submit("print('on', flush=True); input(); print(1)")
    runner.until_output(first, "on")
    runner.expect("waiting-input")
    second, third, fourth = (runner.submit(f"print({n})") for n in (2, 3, 4))
    runner.send("run", id=third, mode="query", code="print('twice')")  # a repeated request
    runner.send("cancel", id=third, reason="timeout")
    finished = runner.expect("finished", id=third)
    assert (finished["reason"], finished["exitCode"]) == ("cancelled:timeout", 137)
    runner.send("input", id=first, text="")
    messages: list[Message] = []
    while not messages or messages[-1].get("id") != fourth or messages[-1]["t"] != "finished":
        messages.append(runner.receive())
    assert [(m["t"], m["id"]) for m in messages if m["t"] in ("started", "finished")] == [
        ("finished", first),
        ("started", second),
        ("finished", second),
        ("started", fourth),
        ("finished", fourth),
    ]


def test_a_full_queue_finishes_at_once(runner: Driver) -> None:
    blocker = runner.submit("input()")
    runner.expect("waiting-input")
    ids = [runner.submit("pass") for _ in range(70)]
    assert runner.expect("finished")["reason"] == "queue-full"
    runner.send("input", id=blocker, text="")
    runner.expect("finished", id=ids[63])


def test_restart_gives_a_fresh_interpreter(runner: Driver, home: Path) -> None:
    runner.run("x = 1\nopen('kept', 'w').close()")
    run_id = runner.submit("input()")
    runner.expect("waiting-input")
    runner.send("restart")
    assert runner.expect("finished", id=run_id)["reason"] == "cancelled:restart"
    assert runner.expect("ready")["runtime"] == "python"
    assert "NameError" in runner.run("x").err
    assert (home / "kept").exists()


def test_ping(runner: Driver) -> None:
    assert runner.data("ping") == {"runtime": "python", "busy": False}
    run_id = runner.submit("input()")
    runner.expect("waiting-input")
    assert runner.data("ping")["busy"] is True
    runner.send("cancel", id=run_id, reason="x")


@pytest.mark.parametrize("polite", [True, False])
def test_the_end_takes_all_children_along(runner: Driver, home: Path, polite: bool) -> None:
    runner.submit("import os, time\nopen('pid', 'w').write(str(os.getpid()))\nprint('on', flush=True)\ntime.sleep(60)")
    runner.expect("console")
    pid = int((home / "pid").read_text())
    if polite:
        runner.send("shutdown")
        assert runner.process.wait(10) == 0
    assert runner.close() == 0
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # dead; whoever adopted it has not looked yet
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    "message",
    [
        {"t": "no-such-message"},
        {"t": None},
        {"t": ["run"]},
        {"nothing": 1},
        {"t": "run"},
        {"t": "run", "id": 5, "mode": "query", "code": "1"},
        {"t": "run", "id": "x", "mode": "dance", "code": "1"},
        {"t": "run", "id": "x", "mode": "query", "code": {"a": 1}},
        {"t": "run", "id": "x", "mode": "batch", "options": "make"},
        {"t": "input"},
        {"t": "cancel"},
        {"t": "complete", "code": 7, "options": "x"},
        {"t": "file-write", "path": "x", "data": "***"},
        {"t": "file-write", "path": 5, "data": ""},
        {"t": "file-write"},
        {"t": "file-list", "path": 5},
        {"t": "file-read", "paths": "x", "max_bytes": 1},
        {"t": "file-read", "paths": [], "max_bytes": 1},
        {"t": "file-read", "paths": [5], "max_bytes": 1},
        {"t": "file-read", "paths": ["."]},
        {"t": "file-read", "paths": ["."], "max_bytes": "all"},
        {"t": "pty-open"},
        {"t": "pty-open", "pty": "", "rows": 24, "cols": 80},
        {"t": "pty-open", "pty": "a", "rows": 0, "cols": 80},
        {"t": "pty-open", "pty": "a", "rows": "x", "cols": 80},
    ],
)
def test_bad_messages_are_refused_and_harmless(runner: Driver, message: Message) -> None:
    runner.send(**{"kind": message.get("t"), "req": 7, **{k: v for k, v in message.items() if k != "t"}})
    reply = runner.expect("reply", req=7)
    assert reply["ok"] is False
    assert reply["error"]["type"] == "invalid"
    runner.send("interrupt", surplus="field")
    assert runner.run("1").out == "1\n"


def test_what_is_no_frame_ends_the_runner(start: Callable[..., Driver]) -> None:
    runner = start()
    runner.socket.sendall(b"\x00\x00\x00\x05hello" + b"\x00\x00\x00\x04null")
    assert runner.run("1").out == "1\n"
    runner.socket.sendall(b"GET / HTTP/1.1\r\n")
    assert runner.process.wait(10) == 0
