"""The published client works with our manager as with its own."""

import pytest

from tests.conformance.checks import CHECKS, Scene, run_check

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("name", CHECKS)
def test_a_command_of_the_published_client(name: str, scene: Scene) -> None:
    run_check(name, scene)
