"""Query mode of Python: what a user of a notebook expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver


def test_an_exception_is_told_by_name_arguments_and_traceback(runner: Driver) -> None:
    ((name, arguments, is_outside, traceback),) = runner.run("raise ValueError('x', 7)").finished["exceptions"]
    assert (name, arguments, is_outside) == ("ValueError", ["x", "7"], False)
    assert traceback.startswith("Traceback")
    assert traceback.endswith("ValueError: ('x', 7)\n")
    code = "class E(Exception):\n    def __repr__(self): raise self\nraise E(E(), 'y' * 10_000_000)"
    ((name, arguments, _, traceback),) = runner.run(code).finished["exceptions"]
    assert (name, arguments) == ("E", [])
    assert len(traceback) <= 4096
    assert "exceptions" not in runner.run("1").finished


def test_ready_says_what_it_can(runner: Driver) -> None:
    assert runner.ready["protocol"] == 1
    assert runner.ready["runtime"] == "python"
    assert runner.ready["version"].startswith("3.")
    features = {"query", "batch", "input", "complete", "pty", "files", "services", "programs"}
    assert set(runner.ready["features"]) == features


def test_globals_are_kept(runner: Driver) -> None:
    runner.run("import math\nx = 20\ndef double(v):\n    return 2 * v")
    assert runner.run("print(double(x) + math.floor(2.5))").out == "42\n"


def test_a_run_has_the_shape_of_the_protocol(runner: Driver) -> None:
    result = runner.run("print('hi')")
    assert [m["t"] for m in result.messages] == ["started", "console", "finished"]
    assert result.finished == {
        "t": "finished",
        "id": "run-1",
        "exitCode": 0,
        "reason": None,
        "signal": None,
        "files": [],
    }


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1 + 1", "2\n"),
        ("x = 3\nx", "3\n"),
        ("x = 3", ""),
        ("None", ""),
        ("'a'", "'a'\n"),
        ("41;", ""),
        ("for i in range(3): i", ""),
        ("_ = 5", ""),
        ("", ""),
        ("# only a comment", ""),
        ("print('a')\n7\n8", "a\n8\n"),
    ],
)
def test_the_value_of_the_last_expression_is_shown(runner: Driver, code: str, shown: str) -> None:
    result = runner.run(code)
    assert (result.out, result.err) == (shown, "")


def test_the_last_value_is_remembered(runner: Driver) -> None:
    runner.run("6 * 7")
    assert runner.run("_ + 1").out == "43\n"


def test_order_of_the_streams_is_kept(runner: Driver) -> None:
    code = """
import os, subprocess, sys
for i in range(20):
    print("o", i)
    print("e", i, file=sys.stderr)
print("partial", end="")
print("err", file=sys.stderr)
subprocess.call(["echo", "sub"])
print("after")
os.system("echo suberr >&2")
print("last")
os.write(2, b"raw\\n")
sys.stdout.write("end\\n")
"""
    items = runner.run(code).items
    expected = [pair for i in range(20) for pair in (["stdout", f"o {i}\n"], ["stderr", f"e {i}\n"])]
    expected += [
        ["stdout", "partial"],
        ["stderr", "err\n"],
        ["stdout", "sub\nafter\n"],
        ["stderr", "suberr\n"],
        ["stdout", "last\n"],
        ["stderr", "raw\n"],
        ["stdout", "end\n4\n"],
    ]
    assert items == expected


def test_traceback_shows_the_frames_of_the_user_only(runner: Driver) -> None:
    result = runner.run("a = 123\nprint('what happens now?')\na = a / 0")
    assert result.out == "what happens now?\n"
    assert result.err == (
        "Traceback (most recent call last):\n"
        '  File "<input>", line 3, in <module>\n'
        "ZeroDivisionError: division by zero\n"
    )
    assert result.finished["exitCode"] == 0


def test_traceback_of_chained_exceptions(runner: Driver) -> None:
    code = "def f():\n    raise KeyError('k')\ntry:\n    f()\nexcept KeyError as e:\n    raise ValueError('v') from e"
    error = runner.run(code).err
    assert "direct cause" in error
    assert 'File "<input>", line 2, in f' in error
    assert error.endswith("ValueError: v\n")
    assert "worker" not in error


def test_syntax_error(runner: Driver) -> None:
    error = runner.run("x = (1,\ndef").err
    assert error.startswith('  File "<input>", line')
    assert "SyntaxError" in error
    assert "Traceback" not in error
    assert runner.run("x").err.endswith("NameError: name 'x' is not defined\n")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("exit()", ""),
        ("import sys; sys.exit(0)", ""),
        ("exit(3)", "SystemExit: 3\n"),
        ("exit('bye')", "SystemExit: bye\n"),
    ],
)
def test_system_exit_ends_the_run_only(runner: Driver, code: str, error: str) -> None:
    runner.run("kept = 1")
    result = runner.run(code)
    assert (result.err, result.finished["exitCode"], result.finished["reason"]) == (error, 0, None)
    assert runner.run("kept").out == "1\n"


def test_future_statement_lasts(runner: Driver) -> None:
    runner.run("from __future__ import annotations")
    assert runner.run("def f(x: undefined): pass\nprint('ok')").out == "ok\n"


def test_await_at_top_level(runner: Driver) -> None:
    assert runner.run("import asyncio\nawait asyncio.sleep(0.001, 'slept')").out == "'slept'\n"
    error = runner.run("async def f():\n    raise ValueError('x')\nawait f()").err
    assert error.endswith("ValueError: x\n")
    assert 'File "<input>", line 2, in f' in error


def test_rich_representations(runner: Driver) -> None:
    code = """
class Rich:
    def __init__(self, **forms):
        for name, data in forms.items():
            setattr(type(self), name, lambda self, data=data: data)
    def __repr__(self): return "plain"
Html = type("Html", (Rich,), {})
Png = type("Png", (Rich,), {})
Svg = type("Svg", (Rich,), {})
Bundle = type("Bundle", (Rich,), {})
Nothing = type("Nothing", (Rich,), {})
"""
    runner.run(code)
    assert runner.run("Html(_repr_html_='<b>x</b>')").items == [["html", "<b>x</b>"]]
    assert runner.run("Png(_repr_png_=b'abc')").items == [["media", ["image/png", "data:image/png;base64,YWJj"]]]
    assert runner.run("Svg(_repr_svg_='<svg/>')").items == [["media", ["image/svg+xml", "<svg/>"]]]
    assert runner.run("Bundle(_repr_mimebundle_={'text/html': 'h'})").items == [["html", "h"]]
    assert runner.run("Nothing(_repr_html_=None)").items == [["stdout", "plain\n"]]
    assert runner.run("print('a')\nHtml(_repr_html_='<i/>')").items == [["stdout", "a\n"], ["html", "<i/>"]]
    assert runner.run("Html").out.startswith("<class")


FAKE_MATPLOTLIB = {
    "__init__.py": "rcParams = {}\n",
    "_pylab_helpers.py": """
class Gcf:
    figs = []
    @classmethod
    def get_all_fig_managers(cls): return cls.figs
    @classmethod
    def destroy_all(cls): cls.figs = []
""",
    "backend_bases.py": """
import sys
class FigureManagerBase:
    def __init__(self, canvas): self.canvas = canvas
class _Backend:
    @staticmethod
    def export(cls):
        for name in ("FigureCanvas", "FigureManager", "show"):
            setattr(sys.modules[cls.__module__], name, getattr(cls, name))
        return cls
""",
    "backends/__init__.py": "",
    "backends/backend_agg.py": "class FigureCanvasAgg:\n    def __init__(self, figure): self.figure = figure\n",
    "pyplot.py": """
import importlib, matplotlib
from matplotlib._pylab_helpers import Gcf
backend = importlib.import_module(matplotlib.rcParams["backend"][len("module://"):])
class Figure:
    def __init__(self, size): self.size = size
    def savefig(self, file, format):
        file.write("<svg>" + "x" * self.size + "</svg>" if format == "svg" else b"png")
def plot(size=1): Gcf.figs.append(backend.FigureManager(backend.FigureCanvas(Figure(size))))
def show(*args): backend.show(*args)
""",
}


def test_figures_are_media_in_their_place(start: Callable[..., Driver], tmp_path: Path) -> None:
    package = tmp_path / "site" / "matplotlib"
    for name, text in FAKE_MATPLOTLIB.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    runner = start(PYTHONPATH=str(package.parent))
    code = """
import matplotlib.pyplot as plt
print('plotting')
plt.plot()
plt.show()
print('done')
plt.plot(2 * 1024 * 1024)
plt.show()
plt.show()
"""
    assert runner.run(code).items == [
        ["stdout", "plotting\n"],
        ["media", ["image/svg+xml", "<svg>x</svg>"]],
        ["stdout", "done\n"],
        ["media", ["image/png", "data:image/png;base64,cG5n"]],
    ]


def test_figures_of_the_real_matplotlib(runner: Driver) -> None:
    if "ModuleNotFoundError" in runner.run("import matplotlib").err:
        pytest.skip("machine: matplotlib is not installed for this interpreter")
    result = runner.run("import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4]);\nplt.show()\nprint('done')")
    assert [item[0] for item in result.items] == ["media", "stdout"]
    assert result.items[0][1][0] == "image/svg+xml"
    assert "<svg" in result.items[0][1][1]


def test_the_interpreter_looks_like_the_users_own(runner: Driver) -> None:
    code = """
import os, sys
print(__name__, sys.argv, sys.path[0] == "", os.getcwd() == os.environ["HOME"], os.environ["TERM"])
print(sorted(k for k in globals() if not k.startswith("__")))
print(sys.stdout.isatty(), sys.stdout.fileno(), sys.stdout.encoding, sys.stdin.isatty())
"""
    lines = runner.run(code).out.splitlines()
    assert lines[0].startswith("__main__ [''] True True ")
    assert lines[1] == "['os', 'sys']"
    assert lines[2] == "False 1 utf-8 False"


def test_modules_in_the_home_and_of_the_user_are_found(runner: Driver, home: Path) -> None:
    (home / "mine.py").write_text("value = 'from home'\n")
    assert runner.run("import mine; mine.value").out == "'from home'\n"
    assert runner.run("import sys; any('.local/lib' in p for p in sys.path)").out == "True\n"


def test_names_of_our_modules_are_free_for_the_user(runner: Driver, home: Path) -> None:
    for name in ("python_child", "process", "files", "display", "event_loop"):
        (home / f"{name}.py").write_text(f"who = 'user {name}'\n")
        assert runner.run(f"import {name}; {name}.who").out == f"'user {name}'\n"


def test_multiprocessing_and_forks(runner: Driver) -> None:
    code = """
import os, multiprocessing
context = multiprocessing.get_context("fork")
def work(n):
    print("child", n)
child = context.Process(target=work, args=(1,))
child.start(); child.join()
pid = os.fork()
if pid == 0:
    print("in fork")
else:
    os.waitpid(pid, 0)
    print("parent")
"""
    result = runner.run(code)
    assert sorted(result.out.splitlines()) == ["child 1", "in fork", "parent"]
    assert runner.run("'alive'").out == "'alive'\n"


def test_completion(runner: Driver) -> None:
    runner.run("import os\nvalue_one = 1\nvalue_two = 2")

    def complete(line: str, **options: object) -> list[str]:
        data = runner.data(
            "complete", code=line, options={"line": line, "row": 0, "col": len(line), "post": "", **options}
        )
        matches: list[str] = data["matches"]
        return matches

    assert complete("pri") == ["print"]
    assert complete("x = value_") == ["value_one", "value_two"]
    assert "os.path" in complete("os.pa")
    assert complete("os.path.joi") == ["os.path.join"]
    assert "json" in complete("import js")
    assert complete("from os import getcw") == ["getcwd", "getcwdb"]
    assert complete("nothing.here") == []
    assert complete("f().re") == []
    assert complete("pri and more", col=3) == ["print"]
    assert complete("") == []
    assert runner.data("complete", code="pri")["matches"] == ["print"]


def test_completion_does_not_wait_for_a_busy_or_hanging_interpreter(runner: Driver) -> None:
    run_id = runner.submit("import time\nprint('on', flush=True)\ntime.sleep(60)")
    runner.until_output(run_id, "on")
    assert runner.data("complete", code="pri")["matches"] == []
    runner.send("interrupt")
    runner.collect(run_id)
    runner.run("class Slow:\n    def __dir__(self):\n        import time\n        time.sleep(60)\nslow = Slow()")
    assert runner.data("complete", code="slow.x")["matches"] == []
    assert runner.run("1").out == "1\n"


def test_files_in_output_are_listed(runner: Driver, home: Path) -> None:
    assert (home / ".output").is_dir()
    (home / ".output" / "old").write_text("old")
    code = """
import os
open(".output/new.txt", "w").write("12345")
os.makedirs(".output/a/b")
open(".output/a/b/c", "w").close()
os.symlink("/etc/passwd", ".output/link")
"""
    assert runner.run(code).finished["files"] == [{"name": "a/b/c", "size": 0}, {"name": "new.txt", "size": 5}]
    assert runner.run("open('.output/old', 'a').write('er');").finished["files"] == [{"name": "old", "size": 5}]
    assert runner.run("pass").finished["files"] == []


@pytest.mark.parametrize(
    ("code", "raised"),
    [("1 / 0", True), ("exit(3)", True), ("x = (", True), ("exit(0)", False), ("print(1)", False)],
)
def test_an_exception_is_told_beside_the_exit_code(runner: Driver, code: str, raised: bool) -> None:
    finished = runner.run(code).finished
    assert (finished["exitCode"], finished.get("raised", False)) == (0, raised)
    assert "raised" not in runner.run("print(2)").finished
