"""Read what a pytest run reported: prints `passed failed skipped remark` for ./check.

The exit code of pytest has the last word: a run that ended badly counts at least one failure, whatever it wrote.

Usage: python -m tools.counts REPORT.xml EXIT_CODE
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

REMARKS = {
    0: "",
    1: "",
    2: "interrupted",
    3: "pytest failed internally",
    4: "wrong arguments",
    5: "no test was selected",
}

_MAX_NAMES = 5


def counts(report: str | None, exit_code: int) -> tuple[int, int, int, str]:
    """Return passed, failed, skipped and a remark, which names the first five failures.

    `report` is the text of a junit file, None if it was not written.
    """
    passed = skipped = 0
    failures: list[str] = []
    if report is not None:
        for case in ElementTree.fromstring(report).iter("testcase"):
            outcomes = {child.tag for child in case}
            if outcomes & {"failure", "error"}:
                failures.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}")
            elif "skipped" in outcomes:
                skipped += 1
            else:
                passed += 1
    failed = len(failures)
    remark = REMARKS.get(exit_code, f"pytest ended with {exit_code}")
    if exit_code in (1, 2) and failures:  # 2: also where `--maxfail` ended the run
        names = ", ".join(" ".join(name.split()) for name in failures[:_MAX_NAMES])
        remark = f"{remark}: {names}" if remark else names
    if exit_code != 0 and failed == 0:
        failed = 1
    if exit_code == 0 and failed:
        remark = "the report names failures although pytest ended with 0"
    return passed, failed, skipped, remark


if __name__ == "__main__":
    path = Path(sys.argv[1])
    numbers = counts(path.read_text(encoding="utf-8") if path.exists() else None, int(sys.argv[2]))
    sys.stdout.write(" ".join(str(part) for part in numbers).strip() + "\n")
