import pytest
from tools.counts import counts

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/>
<testcase classname="tests.unit.test_a" name="c"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="d"><error message="no"/></testcase>
<testcase name="e"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted() -> None:
    assert counts(REPORT, 1) == (2, 2, 1, "test_a::c, test_a::d")


def test_a_run_that_was_ended_after_some_failures_names_them() -> None:
    assert counts(REPORT, 2) == (2, 2, 1, "interrupted: test_a::c, test_a::d")


@pytest.mark.parametrize("exit_code", [2, 3, 4, 5, -11, 137])
def test_a_run_that_ended_badly_is_never_a_success(exit_code: int) -> None:
    passed, failed, _, remark = counts(
        "<testsuites><testsuite><testcase name='a'/></testsuite></testsuites>", exit_code
    )
    assert (passed, failed) == (1, 1)
    assert remark
    assert counts(None, exit_code)[1] == 1


def test_a_run_that_wrote_no_report_fails_even_with_failures_unknown() -> None:
    assert counts(None, 1) == (0, 1, 0, "")
