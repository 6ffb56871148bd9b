"""What the user's code finds installed, although the runner itself is started without any of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver

USER_SITE = f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def test_packages_of_the_interpreter_are_there(runner: Driver) -> None:
    # The tests' own interpreter is a virtual environment: its packages are found through `pyvenv.cfg`.
    assert runner.run("import msgspec, sys; print(sys.prefix)").out.strip() == sys.prefix


def test_modules_beside_the_code_come_first(runner: Driver, home: Path) -> None:
    (home / "json.py").write_text("mine = True")
    assert runner.run("import sys; print(repr(sys.path[0]))").out == "''\n"


def test_what_site_adds_to_the_builtins_survives_its_deletion(runner: Driver) -> None:
    runner.run("import builtins; del builtins.exit, builtins.input")
    result = runner.run("print(callable(exit), input.__name__)")
    assert result.out == "True input\n"


def test_flags_are_those_of_the_users_own_start(runner: Driver) -> None:
    code = "import sys; f = sys.flags; print(f.no_site, f.isolated, len(f), repr(f)[:10], f.n_sequence_fields)"
    words = runner.run(code).out.split()
    assert words[:2] == ["0", "0"]
    assert words[2] == words[4]
    assert words[3] == "sys.flags("
    assert "no attribute 'nothing'" in runner.run("sys.flags.nothing").err


def test_what_was_just_installed_is_found(runner: Driver, home: Path) -> None:
    assert "ModuleNotFoundError" in runner.run("import fresh").err
    code = f"""
from pathlib import Path
folder = Path({USER_SITE!r})
folder.mkdir(parents=True)
(folder / "fresh.py").write_text("value = 42")
import fresh
fresh.value
"""
    assert runner.run(code).out == "42\n"
    assert "No module named 'nothing_at_all'" in runner.run("import nothing_at_all").err


def test_programs_that_were_just_installed_are_found(runner: Driver, home: Path) -> None:
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/mine").write_text("#!/bin/sh\necho mine")
    (home / ".local/bin/mine").chmod(0o755)
    assert runner.batch(exec="mine").out == "mine\n"
    assert runner.run("import subprocess; subprocess.run(['mine']);").out == "mine\n"


def test_children_that_repeat_the_flags_find_the_packages(runner: Driver) -> None:
    code = "import subprocess; print(subprocess._args_from_interpreter_flags())"
    assert runner.run(code).out == "[]\n"


def test_start_up_code_that_fails_is_told_and_passed_over(start: Callable[..., Driver], home: Path) -> None:
    (home / USER_SITE).mkdir(parents=True)
    (home / USER_SITE / "broken.pth").write_text("import no_such_module_at_all\n")
    (home / USER_SITE / "there.py").write_text("here = 1")
    assert "1\n" in start().run("import there; print(there.here)").out


def test_start_up_code_that_kills_ends_the_run_that_needs_it(start: Callable[..., Driver], home: Path) -> None:
    (home / USER_SITE).mkdir(parents=True)
    count = "import os; os.write(os.open('count', os.O_CREAT | os.O_APPEND | os.O_WRONLY), b'x'); os._exit(9)\n"
    (home / USER_SITE / "deadly.pth").write_text(count)
    runner = start()
    assert runner.data("ping")["runtime"] == "python"
    assert not (home / "count").exists()
    for number in (1, 2):
        assert runner.run("print('never')").finished["exitCode"] == 9
        assert (home / "count").stat().st_size == number


def test_start_up_code_runs_before_the_first_code_and_once(start: Callable[..., Driver], home: Path) -> None:
    (home / USER_SITE).mkdir(parents=True)
    (home / USER_SITE / "once.pth").write_text("import sys; sys.starts = getattr(sys, 'starts', 0) + 1\n")
    runner = start()
    assert runner.run("import sys; print(sys.starts)").out == "1\n"
    assert runner.run("print(sys.starts)").out == "1\n"


SLOW = "import time; print('loading', flush=True); time.sleep(1.0)\n"


def test_an_interrupt_while_packages_load_ends_the_run_and_loses_no_package(
    start: Callable[..., Driver], home: Path
) -> None:
    site = home / USER_SITE
    site.mkdir(parents=True)
    (site / "a_slow.pth").write_text(SLOW)
    (site / "b.pth").write_text(f"{home / 'more'}\n")
    (home / "more").mkdir()
    (home / "more/late.py").write_text("value = 42")
    runner = start()
    run_id = runner.submit("print('never')")
    runner.until_output(run_id, "loading")
    runner.send("interrupt")
    result = runner.collect(run_id)
    assert "never" not in result.out
    assert "KeyboardInterrupt" in result.err
    assert runner.run("import late; print(late.value, callable(quit))").out == "42 True\n"


def test_a_completion_that_waits_for_packages_loses_none(start: Callable[..., Driver], home: Path) -> None:
    site = home / USER_SITE
    site.mkdir(parents=True)
    (site / "a_slow.pth").write_text(SLOW.replace("1.0", "2.5"))  # longer than a completion may take
    (site / "b.pth").write_text(f"{home / 'more'}\n")
    (home / "more").mkdir()
    (home / "more/late.py").write_text("value = 42")
    runner = start()
    runner.data("complete", code="impo")
    assert runner.run("import late; print(late.value)").out.endswith("42\n")


def test_start_up_code_that_ignores_interrupts_does_so_for_itself_only(
    start: Callable[..., Driver], home: Path
) -> None:
    (home / USER_SITE).mkdir(parents=True)
    (home / USER_SITE / "deaf.pth").write_text("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    runner = start()
    run_id = runner.submit("import time\nprint('runs', flush=True)\ntime.sleep(60)")
    runner.until_output(run_id, "runs")
    runner.send("interrupt")
    assert "KeyboardInterrupt" in runner.collect(run_id).err


@pytest.mark.parametrize(
    "name", ["enum", "functools", "re", "collections", "operator", "keyword", "types", "token", "linecache"]
)
def test_a_file_of_the_user_with_a_standard_name_breaks_no_traceback(runner: Driver, home: Path, name: str) -> None:
    (home / f"{name}.py").write_text("hello = 1")
    error = runner.run("1/0").err
    assert "Traceback" in error
    assert "division by zero" in error
    assert "print" in runner.data("complete", code="pri")["matches"]
