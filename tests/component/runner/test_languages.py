"""Query mode of other languages, by their real interpreters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver


@pytest.mark.needs("node")
class TestNodejs:
    @pytest.fixture
    def node(self, start: Callable[..., Driver]) -> Driver:
        return start("nodejs")

    def test_ready(self, node: Driver) -> None:
        assert (node.ready["runtime"], node.ready["version"].count(".")) == ("nodejs", 2)
        assert "query" in node.ready["features"]

    def test_values_and_variables_are_kept(self, node: Driver) -> None:
        assert node.run("const x = 41; let y; function f(n) { return n + 1 }").out == ""
        assert node.run("f(x)").out == "42\n"
        assert node.run("({a: [1, 'b']})").out == "{ a: [ 1, 'b' ] }\n"
        assert node.run("console.log('\u20ac'); console.error('e')").items == [
            ["stdout", "\u20ac\n"],
            ["stderr", "e\n"],
        ]
        assert node.run("require('path').basename('/a/b')").out == "'b'\n"
        assert (
            node.run("await new Promise(done => setTimeout(() => done(7), 20)); console.log('after')").out == "after\n"
        )

    @pytest.mark.parametrize("code", ["throw new TypeError('x')", "nothing.at.all", "let = 3 3", "throw 5"])
    def test_an_error_ends_the_run_alone(self, node: Driver, code: str) -> None:
        result = node.run(code)
        assert (result.finished["exitCode"], result.finished["raised"]) == (0, True)
        assert result.err
        assert "query_nodejs" not in result.err
        assert node.run("1 + 1").out == "2\n"

    def test_an_error_is_told_by_name(self, node: Driver) -> None:
        ((name, arguments, _, traceback),) = node.run("throw new TypeError('x')").finished["exceptions"]
        assert (name, arguments) == ("TypeError", ["x"])
        assert "<input>:1" in traceback

    def test_interrupts(self, node: Driver) -> None:
        node.run("var kept = 1")
        for code in ("console.log('on'); for (;;);", "console.log('on'); await new Promise(() => {})"):
            run_id = node.submit(code)
            node.until_output(run_id, "on")
            time.sleep(0.2)
            node.send("interrupt")
            assert node.collect(run_id).finished["raised"] is True
        assert node.run("kept").out == "1\n"

    def test_its_death_is_a_fresh_start(self, node: Driver) -> None:
        finished = node.run("process.exit(3)").finished
        assert (finished["exitCode"], finished["reason"]) == (3, "interpreter-died")
        assert node.run("'again'").out == "'again'\n"

    def test_much_output_and_large_code(self, node: Driver) -> None:
        assert node.run(f"/*{'x' * 1_000_000}*/ 'y'.repeat(200_000).length").out == "200000\n"
        assert len(node.run("console.log('y'.repeat(300_000))").out) == 300_001


@pytest.mark.needs("jshell")
class TestJava:
    @pytest.fixture
    def java(self, start: Callable[..., Driver]) -> Driver:
        return start("java")

    def test_snippets(self, java: Driver) -> None:
        assert java.ready["runtime"] == "java"
        assert java.run("int x = 41;\nint f(int n) {\n  return n + 1;\n}").out == ""
        assert java.run("f(x)").out == "42\n"
        assert java.run('System.out.println("a"); System.err.println("b"); List.of(1, 2)').out == "a\n[1, 2]\n"
        for code, name in (
            ('throw new IllegalStateException("x");', "java.lang.IllegalStateException"),
            ("int y = 1 / 0; System.out.println(9);", "java.lang.ArithmeticException"),
            ("nothing.at.all()", "CompileError"),
            ("int (", "CompileError"),
        ):
            result = java.run(code)
            assert result.finished["exceptions"][0][0] == name
            assert result.err
            assert result.out == ""
        run_id = java.submit('System.out.println("on"); while (true) { Thread.sleep(10); }')
        java.until_output(run_id, "on")
        java.send("interrupt")
        java.collect(run_id)
        assert java.run("x").out == "41\n"
        assert java.run("System.exit(3);").finished["reason"] == "interpreter-died"
        assert java.run('"again"').out == '"again"\n'


@pytest.mark.needs("R")
def test_snippets_of_r(start: Callable[..., Driver]) -> None:
    r = start("r")
    assert (r.ready["runtime"], r.ready["version"].count(".")) == ("r", 2)
    assert r.run("x <- 41\nf <- function(n) {\n  n + 1\n}").out == ""
    assert r.run("f(x)").out == "[1] 42\n"
    result = r.run('cat("\u20ac\\n"); message("b"); invisible(3)')
    assert (result.out, result.err) == ("\u20ac\n", "b\n")
    for code, name, text in (
        ("stop('x y')", "simpleError", "x y"),
        ("nothing", "simpleError", "object 'nothing' not found"),
        ("f(", "simpleError", "unexpected end of input"),
    ):
        result = r.run(code)
        ((told, (message,), _, _),) = result.finished["exceptions"]
        assert told == name
        assert text in message
        assert text in result.err
    run_id = r.submit('cat("on\\n"); repeat {}')
    r.until_output(run_id, "on")
    time.sleep(0.3)
    r.send("interrupt")
    assert r.collect(run_id).finished["exceptions"][0][0] == "interrupt"
    assert r.run("x").out == "[1] 41\n"
    assert r.run("q(status = 3)").finished["exitCode"] == 3
    assert r.run("'again'").out == '[1] "again"\n'


@pytest.mark.needs("R")
def test_default_commands_of_r(start: Callable[..., Driver], home: Path) -> None:
    (home / "main.R").write_text("cat(6 * 7)")
    assert start("r").batch(build="*", exec="*").out == "42"


@pytest.mark.needs("go")
def test_snippets_of_go(start: Callable[..., Driver]) -> None:
    go = start("golang")
    assert "query" in go.ready["features"]
    assert go.collect(go.submit("x := 6\nprintln(x * 7)"), timeout=50).err == "42\n"
    whole = 'package main\nfunc main() { panic("x") }'
    assert go.collect(go.submit(whole), timeout=50).finished["exitCode"] == 1
    assert "<input>:2" in go.collect(go.submit("println(1)\nprintln(nothing)"), timeout=50).err


def test_an_interpreter_that_does_not_start(start: Callable[..., Driver], tmp_path: Path) -> None:
    (tmp_path / "node").write_text("#!/bin/sh\necho broken >&2; exit 1")
    (tmp_path / "node").chmod(0o755)
    runner = start("nodejs", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert "query" not in runner.ready["features"]
    assert "the interpreter of nodejs does not start" in runner.ready["problem"]
    assert runner.batch(exec="echo here").out == "here\n"
    assert "runs no snippets" in runner.run("1").err


def test_an_image_without_the_interpreter_takes_commands(start: Callable[..., Driver]) -> None:
    runner = start("nodejs", PATH="/nowhere")
    assert "query" not in runner.ready["features"]
    assert "runs no snippets" in runner.run("1").err
