import json
from collections.abc import Sequence

import pytest

from bench import runner, sessions
from bench.figures import REGISTRY, Benchmark, Figure, benchmark, spread


def figure(*, holds: bool) -> Figure:
    return Figure(name="f", value=3.0, unit="ms", reference=2.0, reference_is="bare", target="<= 4 ms", holds=holds)


def test_a_figure_is_one_line_of_json_with_the_promised_keys() -> None:
    line = figure(holds=True).as_json()
    assert "\n" not in line
    decoded = json.loads(line)
    assert {"name", "value", "unit", "reference", "ratio", "target", "holds"} <= decoded.keys()
    assert decoded["ratio"] == 1.5


def test_the_runner_prints_the_figures_and_fails_if_one_does_not_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MODULES", ())
    monkeypatch.setitem(REGISTRY, "good", Benchmark("good", "", lambda: [figure(holds=True)]))
    monkeypatch.setitem(REGISTRY, "bad", Benchmark("bad", "", lambda: [figure(holds=False)]))
    assert runner.main(["good"]) == 0
    assert runner.main(["good", "bad"]) == 1
    assert [json.loads(line)["holds"] for line in capsys.readouterr().out.splitlines()] == [True, True, False]


def test_a_benchmark_that_breaks_fails_the_run_and_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> Sequence[Figure]:
        raise OSError("no such thing")

    monkeypatch.setattr(runner, "MODULES", ())
    monkeypatch.setitem(REGISTRY, "breaks", Benchmark("breaks", "", breaks))
    monkeypatch.setitem(REGISTRY, "good", Benchmark("good", "", lambda: [figure(holds=True)]))
    assert runner.main(["breaks", "good"]) == 1
    captured = capsys.readouterr()
    assert "no such thing" in captured.err
    assert json.loads(captured.out)["holds"] is True


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["no-such"]) == 2
    assert "no-such" in capsys.readouterr().err
    assert runner.main([]) == 2


def test_two_benchmarks_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure() -> Sequence[Figure]:
        return []

    monkeypatch.setitem(REGISTRY, "one", Benchmark("one", "", measure))
    with pytest.raises(ValueError, match="two benchmarks"):
        benchmark("one", "again")(measure)


def test_spread_of_samples() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"samples": 3.0, "min": 1.0, "p50": 2.0, "p90": 3.0, "max": 3.0}


def test_the_list_is_in_one_style_and_names_needed_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    width = max(map(len, REGISTRY)) + 1
    assert all(line[width - 1] == " " and line[width] != " " and not line.endswith(".") for line in lines)
    assert [line.split()[0] for line in lines if line.endswith("[needs --data]")] == ["fragmentation"]


def test_the_floor_shows_an_interpreter_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: "bwrap")
    monkeypatch.setattr("sys.prefix", "/tmp/clone/.venv")
    command = " ".join(sessions.bare_sandbox())
    assert "--tmpfs /tmp --ro-bind /tmp/clone/.venv /tmp/clone/.venv" in command
