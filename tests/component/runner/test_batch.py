"""Batch mode, and the runtimes that are not Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.runner.driver import RUNNER, Driver

needs = pytest.mark.needs


def kinds(messages: list[dict[str, object]]) -> list[object]:
    return [m["t"] for m in messages if m["t"] != "console"]


def test_steps_in_order(runner: Driver) -> None:
    result = runner.batch(clean="echo cleaning", build="echo building; echo warning >&2", exec="echo running; exit 5")
    assert kinds(result.messages) == ["started", "clean-finished", "build-finished", "finished"]
    shown = [m["t"] for m in result.messages]
    assert [kind for kind, before in zip(shown, ["", *shown], strict=False) if kind != before] == [
        "started",
        "console",
        "clean-finished",
        "console",
        "build-finished",
        "console",
        "finished",
    ]
    assert result.out == "cleaning\nbuilding\nrunning\n"
    assert result.err == "warning\n"
    assert (result.finished["exitCode"], result.finished["reason"]) == (5, None)


@pytest.mark.parametrize(
    ("options", "expected", "code"),
    [
        ({"exec": "true"}, ["started", "finished"], 0),
        ({"clean": None, "build": "", "exec": "exit 3"}, ["started", "finished"], 3),
        ({"build": "exit 2", "exec": "echo never"}, ["started", "build-finished", "finished"], 127),
        ({"build": "exit 2"}, ["started", "build-finished", "finished"], 127),
        ({"clean": "*", "build": "true"}, ["started", "clean-finished", "build-finished", "finished"], 0),
        ({"clean": "exit 9", "build": "true"}, ["started", "clean-finished", "build-finished", "finished"], 0),
        ({}, ["started", "finished"], 0),
        ({"exec": "no-such-command"}, ["started", "finished"], 127),
        ({"exec": "kill -9 $$"}, ["started", "finished"], 137),
    ],
)
def test_which_steps_are_run(runner: Driver, options: dict[str, str], expected: list[str], code: int) -> None:
    result = runner.batch(**options)
    assert kinds(result.messages) == expected
    assert result.finished["exitCode"] == code
    assert "never" not in result.out


def test_build_log_is_hidden_unless_wanted_or_needed(runner: Driver) -> None:
    shown = runner.batch(build="echo log", buildLog=True, exec="echo run")
    assert shown.out == "log\nrun\n"
    hidden = runner.batch(build="echo log", buildLog=False, exec="echo run")
    assert hidden.out == "run\n"
    failed = runner.batch(build="seq 100000; echo why >&2; exit 1", buildLog=False, exec="echo run")
    assert failed.err == "why\n"
    assert failed.out.endswith("99999\n100000\n")
    assert len(failed.out) <= 70_000
    assert runner.batch(build="echo log", buildLog=False).out == "log\n"  # without exec it is the only result


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _phases(runner: Driver, began: float, **run: object) -> list[str]:
    """Runs something traced; returns the names of its phases, whose times are in order."""
    finished = runner.collect(runner.submit(trace=TRACE, **run)).finished  # type: ignore[arg-type]  # any field
    times = [moment for _, *pair in finished["phases"] for moment in pair]
    assert began <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.time()
    return [name for name, *_ in finished["phases"]]


def test_a_traced_run_tells_its_phases_and_its_programs_find_the_trace(runner: Driver) -> None:
    began = time.time()
    options = {"clean": "true", "build": "sleep 0.1", "exec": 'echo "$TRACEPARENT"'}
    assert _phases(runner, began, mode="batch", options=options, env={}) == ["clean", "build", "exec"]
    assert _phases(runner, began, code="1") == ["code"]
    assert _phases(runner, began, mode="batch", options={"build": "exit 1", "exec": "true"}) == ["build"]
    shown = runner.collect(runner.submit(mode="batch", options=options, trace=TRACE))
    assert shown.out == f"{TRACE}\n"
    own = runner.collect(runner.submit(mode="batch", options=options, trace=TRACE, env={"TRACEPARENT": "own"}))
    assert own.out == "own\n"
    assert "phases" not in runner.run("1").finished, "a run without a trace tells none"


@pytest.mark.needs("gcc")
def test_a_snippet_is_compiled_and_executed_in_phases_of_their_own(start: Callable[..., Driver]) -> None:
    driver = start("c")
    assert _phases(driver, time.time(), code="return 3;") == ["compile", "exec"]
    assert _phases(driver, time.time(), code="no C;") == ["compile"]
    failed = driver.run("no C;")
    assert failed.finished["exitCode"] == 1
    assert kinds(failed.messages) == ["started", "finished"]


def test_environment_and_place(runner: Driver, home: Path) -> None:
    result = runner.batch(
        exec='pwd; echo "$HOME $TERM $GREETING"; cat; echo end', input=False, env={"GREETING": "h\u00ef\n$x"}
    )
    assert result.out == f"{home}\n{home} {__import__('os').environ.get('TERM', 'xterm')} h\u00ef\n$x\nend\n"
    assert runner.batch(exec="true", env={"A=B": "c", "N": "nul\0"}).finished["t"] == "finished"


def test_default_commands_of_python(runner: Driver, home: Path) -> None:
    (home / "main.py").write_text("import sys\nprint('main', sys.argv)\nsys.exit(4)\n")
    result = runner.batch(clean="*", build="*", exec="*")
    assert result.out == "main ['main.py']\n"
    assert result.finished["exitCode"] == 4
    assert (home / "main.py").exists()
    (home / "setup.py").write_text("import sys\nprint(sys.argv[1:])\n")
    assert "install" in runner.batch(build="*", exec="*").out


def test_interrupt_and_cancel(runner: Driver, home: Path) -> None:
    run_id = runner.submit(mode="batch", options={"exec": "echo on; sleep 60; echo after"})
    runner.until_output(run_id, "on")
    runner.send("interrupt")
    finished = runner.collect(run_id).finished
    assert finished["exitCode"] == 130
    run_id = runner.submit(mode="batch", options={"build": "trap '' INT TERM; echo on; sleep 1; touch survived"})
    runner.until_output(run_id, "on")
    runner.send("cancel", id=run_id, reason="exec-timeout")
    finished = runner.collect(run_id).finished
    assert (finished["reason"], finished["signal"]) == ("cancelled:exec-timeout", 9)
    time.sleep(1.1)
    assert not (home / "survived").exists()


def test_background_processes_do_not_hold_the_run(runner: Driver) -> None:
    started = time.monotonic()
    assert runner.batch(exec="sleep 5 & echo done").out == "done\n"
    assert time.monotonic() - started < 4


def test_batch_and_query_can_be_mixed(runner: Driver) -> None:
    runner.run("x = 7")
    assert runner.batch(exec="echo batch").out == "batch\n"
    assert runner.run("x").out == "7\n"


def test_files_in_output_are_listed(runner: Driver) -> None:
    result = runner.batch(exec="echo 123 > .output/result")
    assert result.finished["files"] == [{"name": "result", "size": 4}]


class TestBash:
    @pytest.fixture
    def bash(self, start: Callable[..., Driver]) -> Driver:
        return start("bash")

    def test_ready(self, bash: Driver) -> None:
        assert bash.ready["runtime"] == "bash"
        assert bash.ready["version"][0].isdigit()
        assert set(bash.ready["features"]) == {"query", "batch", "pty", "files", "services", "programs"}

    def test_the_shell_is_kept(self, bash: Driver) -> None:
        bash.run("X='a b'; f() { echo \"f:$1!\"; }; cd /; alias ll='echo alias'")
        result = bash.run('f "$X"; pwd; echo err >&2\nll "it\'s"')
        assert result.out == "f:a b!\n/\nalias it's\n"
        assert result.err == "err\n"
        assert result.finished["exitCode"] == 0
        assert bash.run("false").finished["exitCode"] == 0

    @pytest.mark.parametrize(
        "code",
        [
            "if then",
            "echo 'unterminated",
            "cat <<EOF\nno end",
            "no-such-command",
            ")",
            "\0",
            "\x1b[A",
            "exec 63>&1",
            "((",
            "!!",
        ],
    )
    def test_mistakes(self, bash: Driver, code: str) -> None:
        bash.run("kept=1")
        assert bash.run(code).finished["reason"] is None
        assert bash.run("echo $kept").out == "1\n"

    def test_interrupt(self, bash: Driver) -> None:
        bash.run("kept=1")
        for code in ("echo on; sleep 60; echo after", "echo on; while :; do :; done"):
            run_id = bash.submit(code)
            bash.until_output(run_id, "on")
            time.sleep(0.1)
            bash.send("interrupt")
            assert "after" not in bash.collect(run_id).out
        assert bash.run("echo $kept").out == "1\n"

    @pytest.mark.parametrize(("code", "exit_code", "number"), [("exit 3", 3, None), ("kill -9 $$", 137, 9)])
    def test_death(self, bash: Driver, code: str, exit_code: int, number: int | None) -> None:
        finished = bash.run(code).finished
        assert (finished["exitCode"], finished["reason"], finished["signal"]) == (exit_code, "interpreter-died", number)
        assert bash.run("echo alive").out == "alive\n"

    def test_the_report_pipe_is_closed_to_the_code(self, bash: Driver) -> None:
        assert bash.run("ls /proc/self/fd").out.split() == ["0", "1", "2", "3"]  # the last one lists
        assert bash.run("echo 'D 0' >&63").finished["reason"] is None
        assert bash.run('read line; echo "got:$line"').out == "got:\n"

    def test_default_commands(self, bash: Driver, home: Path) -> None:
        (home / "main.sh").write_text("echo main; exit 2\n")
        result = bash.batch(build="*", exec="*")
        assert (result.out, result.finished["exitCode"]) == ("main\n", 2)

    def test_completion_is_empty(self, bash: Driver) -> None:
        assert bash.data("complete", code="ech")["matches"] == []


@pytest.mark.needs("gcc")
class TestC:
    @pytest.fixture
    def c(self, start: Callable[..., Driver]) -> Driver:
        return start("c")

    def test_ready(self, c: Driver) -> None:
        assert c.ready["runtime"] == "c"
        assert c.ready["version"][0].isdigit()

    def test_a_program(self, c: Driver) -> None:
        result = c.run('#include <stdio.h>\nint main(void) { puts("hi"); fputs("e\\n", stderr); return 3; }')
        assert (result.out, result.err, result.finished["exitCode"]) == ("hi\n", "e\n", 3)

    def test_a_snippet_without_main(self, c: Driver) -> None:
        assert c.run('printf("%.1f\\n", sqrt(2.25));').out == "1.5\n"

    def test_an_error_is_shown_at_the_line_of_the_user(self, c: Driver) -> None:
        result = c.run("int x = 1;\nint y = undeclared;")
        assert "<input>:2:" in result.err
        assert result.finished["exitCode"] != 0

    def test_a_crash(self, c: Driver) -> None:
        result = c.run("volatile int *p = 0; *p = 1;")
        assert (result.finished["exitCode"], result.finished["signal"]) == (139, 11)

    def test_batch_builds_all_sources(self, c: Driver, home: Path) -> None:
        (home / "sub dir").mkdir()
        (home / "main.c").write_text(
            'int answer(void);\n#include <stdio.h>\nint main(void) { printf("%d\\n", answer()); }\n'
        )
        (home / "sub dir" / "-o other's.c").write_text("int answer(void) { return 42; }\n")
        result = c.batch(build="*", exec="*")
        assert (result.out, result.finished["exitCode"]) == ("42\n", 0)

    def test_nothing_to_build(self, c: Driver) -> None:
        result = c.batch(build="*", exec="*")
        assert "no C source file" in result.err
        assert result.finished["exitCode"] == 127

    def test_restart_and_interrupt(self, c: Driver) -> None:
        run_id = c.submit('printf("on\\n"); fflush(stdout); for (;;) pause();')
        c.until_output(run_id, "on")
        c.send("interrupt")
        assert c.collect(run_id).finished["signal"] == 2
        c.send("restart")
        c.expect("ready")


@pytest.mark.parametrize(
    ("runtime", "file", "text"),
    [
        pytest.param("cpp", "main.cc", "#include <iostream>\nint main() { std::cout << 6 * 7; }", marks=needs("gcc")),
        pytest.param("nodejs", "main.js", "process.stdout.write(String(6 * 7))", marks=needs("node")),
        pytest.param("go", "main.go", "package main\nfunc main() { print(6 * 7) }", marks=needs("go")),
        pytest.param(
            "java",
            "Main.java",
            "class Main { public static void main(String[] a) { System.out.print(6 * 7); } }",
            marks=needs("jshell"),
        ),
    ],
)
def test_default_commands_of_languages(
    start: Callable[..., Driver], home: Path, runtime: str, file: str, text: str
) -> None:
    runner = start(runtime)
    (home / file).write_text(text)
    result = runner.collect(runner.submit(mode="batch", options={"build": "*", "exec": "*"}), timeout=50)
    assert result.out + result.err == "42"


@pytest.mark.needs("gcc")
def test_snippets_of_cpp(start: Callable[..., Driver]) -> None:
    assert start("cpp").run("vector<int> v{6, 7}; cout << v[0] * v[1];").out == "42"


def test_an_unknown_type_of_runtime_takes_commands(start: Callable[..., Driver]) -> None:
    runner = start("vendor.h2o")
    assert runner.ready["runtime"] == "app"
    assert "query" not in runner.ready["features"]
    assert runner.batch(exec="echo here").out == "here\n"
    assert "runs no snippets" in runner.run("1").err


def test_the_user_s_ids_and_su_exec(runner: Driver) -> None:
    result = runner.batch(exec=f'{RUNNER.parent}/su-exec "$LOCAL_GROUP_ID:$LOCAL_USER_ID" echo "a  b"')
    assert (result.out, result.finished["exitCode"]) == ("a  b\n", 0)
    result = runner.batch(exec=f"{RUNNER.parent}/su-exec nobody:nogroup echo never")
    assert (result.out, result.finished["exitCode"]) == ("", 1)
    assert "cannot become nobody" in result.err
