from pathlib import Path

import pytest

from ai.backend.cli.run.cases import Plan, make_cases, missing_file_problem, program_command, unknown_option_hint
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


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["my.py", "a", "b c"], """--exec 'python my.py a '"'"'b c'"'"'' python my.py"""),
        (["./sub/my.py", "data.csv", "-"], "--exec 'python sub/my.py -' python sub/my.py data.csv"),
        (["../out.py", "1"], "--exec 'python out.py 1' python ../out.py"),
        (["prog.c", "1"], "--exec 'COMMAND 1' python prog.c"),
    ],
)
def test_arguments_of_a_program_are_led_to_exec(
    files: list[str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for file in ("my.py", "sub/my.py", "data.csv", "../out.py", "prog.c"):
        Path(file).touch()
    problem = missing_file_problem("python", [Path(file) for file in files])
    assert problem is not None
    assert problem.endswith(f": `backend.ai run {command}`")


def test_a_missing_program_is_named_alone(tmp_path: Path) -> None:
    missing = tmp_path / "my.py"
    assert missing_file_problem("python", [missing, Path("a")]) == f"there is no file {str(missing)!r}"
    missing.touch()
    assert missing_file_problem("python", [missing]) is None


def test_options_of_a_program_are_led_to_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").touch()
    hint = unknown_option_hint("--epochs", ["--rm", "-r", "cpu=1", "python", "my.py", "--epochs", "3"])
    command = "backend.ai run --rm -r cpu=1 --exec 'python my.py --epochs 3' python my.py"
    assert hint == f"a program gets its options by --exec: `{command}`"
    assert unknown_option_hint("--epochs", ["python", "no.py", "--epochs"]) is None
    assert unknown_option_hint("--rn", ["--rn", "python", "my.py"]) is None, "a misspelt option of ours"
