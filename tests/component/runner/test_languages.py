"""Query mode of other languages, by their real interpreters."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def test_an_image_without_the_interpreter_takes_commands(start: Callable[..., Driver]) -> None:
    runner = start("nodejs", PATH="/nowhere")
    assert "query" not in runner.ready["features"]
    assert "runs no snippets" in runner.run("1").err
