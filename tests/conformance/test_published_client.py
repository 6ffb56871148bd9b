"""The published client works with our manager as with its own."""

import pytest

from tests.conformance.catalogue import CHECKS, run_check
from tests.conformance.checks import Scene, ended
from tests.conformance.folder_admin_checks import COVERED, NOT_COVERED

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("name", CHECKS)
def test_a_command_of_the_published_client(name: str, scene: Scene) -> None:
    run_check(name, scene)


def test_every_command_of_folders_is_checked_or_has_its_reason(scene: Scene) -> None:
    """The published tree of today, against what is written down: a new command must be judged."""
    found: set[str] = set()
    for group in ("vfolder", "model", "admin vfolder", "admin storage", "admin permission"):
        _, _, commands = ended(scene.client(*group.split(), "--help")).out.partition("Commands:")
        lines = [line for line in commands.splitlines() if line.startswith("  ") and not line.startswith("   ")]
        found |= {f"{group} {line.split()[0]}" for line in lines}
    assert found == {*COVERED, *NOT_COVERED}
    assert not {*COVERED} & {*NOT_COVERED}
    assert {*COVERED.values()} <= {*CHECKS}
