from pathlib import Path

import pytest

from ai.backend.cli.run.cases import Plan, make_cases, program_command
from ai.backend.cli.run.ranges import RangeError


def test_each_text_sees_its_own_range_first() -> None:
    cases = make_cases(
        {"N": "$X", "PLAIN": "$HOME"},
        "make $X $Y",
        "run $X",
        env_ranges=[{"X": "e1"}, {"X": "e2"}],
        build_ranges=[{"Y": "b"}],
        exec_ranges=[{"X": "x1"}, {"X": "x2"}],
    )
    assert [(one.env["N"], one.build, one.exec) for one in cases] == [
        ("e1", "make x1 b", "run x1"),
        ("e1", "make x2 b", "run x2"),
        ("e2", "make x1 b", "run x1"),
        ("e2", "make x2 b", "run x2"),
    ]
    assert cases[0].env["PLAIN"] == "$HOME"
    assert cases[0].title == "X=x1 Y=b"


def test_without_ranges_there_is_one_case() -> None:
    (case,) = make_cases({"A": "$B"}, None, None)
    assert (case.values, case.env, case.build, case.exec) == ({}, {"A": "$B"}, None, None)


def test_the_product_of_all_ranges_is_bounded() -> None:
    many = [{"X": str(number)} for number in range(40)]
    with pytest.raises(RangeError, match="1600 combinations"):
        make_cases({}, None, None, env_ranges=many, exec_ranges=many)


@pytest.mark.parametrize(
    ("build", "exec_", "expected"),
    [
        (None, None, ("*", "*")),
        (None, "./main", ("", "./main")),
        ("make", "./main", ("make", "./main")),
        ("", None, ("", "*")),
    ],
)
def test_the_commands_of_the_image_are_the_default(
    build: str | None, exec_: str | None, expected: tuple[str, str]
) -> None:
    (case,) = make_cases({}, build, exec_)
    options = Plan(image="c", code=None, creation={}, cases=[case]).batch_options(case)
    assert (options["build"], options["exec"]) == expected
    assert (options["clean"], options["buildLog"]) == ("*", True)


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["my.py"], "python my.py"),
        (["sub/my prog.py", "data.csv"], "python 'sub/my prog.py'"),
        (["train.R"], "Rscript train.R"),
        (["main.py", "other.py"], None),
        (["my.py", "main.py"], None),
        (["prog.c"], None),
        (["data.csv", "my.py"], None),
        ([], None),
    ],
)
def test_the_first_file_is_the_program(files: list[str], command: str | None) -> None:
    assert program_command(files) == command


def test_a_program_needs_no_build() -> None:
    (case,) = make_cases({}, None, None)
    plan = Plan(image="python", code=None, creation={}, cases=[case], files=(Path("/w/my.py"),), basedir=Path("/w"))
    assert (plan.batch_options(case)["build"], plan.batch_options(case)["exec"]) == ("", "python my.py")
