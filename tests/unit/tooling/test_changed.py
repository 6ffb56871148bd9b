"""`./check --changed` runs every test that imports what changed, directly or not, and no other."""

from tools.changed import affected

SOURCES = {
    "src/ai/backend/common/__init__.py": "",
    "src/ai/backend/common/slots.py": "import decimal\n",
    "src/ai/backend/core/plan.py": "from ai.backend.common import slots\n",
    "src/ai/backend/cli/main.py": "def later():\n    from ai.backend.core.plan import Plan\n",
    "tests/support/builders.py": "from ai.backend.core.plan import Plan\n",
    "tests/conftest.py": "",
    "tests/unit/common/test_slots.py": "from ai.backend.common.slots import Slot\n",
    "tests/unit/core/test_plan.py": "from tests.support.builders import plan\n",
    "tests/unit/cli/test_main.py": "import ai.backend.cli.main\n",
    "tests/unit/cli/test_other.py": "import json\n",
    "tests/e2e/test_tutorial.py": "",
}


def test_a_module_selects_its_importers_at_any_distance() -> None:
    selected = affected(["src/ai/backend/common/slots.py"], SOURCES)
    assert selected == {
        "tests/unit/common/test_slots.py",
        "tests/unit/core/test_plan.py",
        "tests/unit/cli/test_main.py",
    }


def test_an_upper_module_selects_no_test_of_a_lower_one() -> None:
    assert affected(["src/ai/backend/cli/main.py"], SOURCES) == {"tests/unit/cli/test_main.py"}


def test_a_test_selects_itself_and_a_removed_file_nothing() -> None:
    changed = ["tests/unit/cli/test_other.py", "src/ai/backend/core/removed.py"]
    assert affected(changed, SOURCES) == {"tests/unit/cli/test_other.py"}


def test_a_conftest_selects_everything_below_it() -> None:
    assert affected(["tests/conftest.py"], SOURCES) == {path for path in SOURCES if "/test_" in path}


def test_a_page_selects_the_tests_that_execute_it() -> None:
    assert affected(["docs/tutorial/first-session.md"], SOURCES) == {"tests/e2e/test_tutorial.py"}
