"""Every check by its name."""

from __future__ import annotations

from collections.abc import Callable

from ai.backend.client.exceptions import BackendAPIError
from tests.conformance import (
    admin_checks,
    checks,
    folder_admin_checks,
    folder_checks,
    image_checks,
    model_service_checks,
    service_checks,
    session_default_checks,
)
from tests.conformance.checks import Scene

CHECKS: dict[str, Callable[[Scene], None]] = {
    name.removeprefix("check_"): check
    for module in (
        checks,
        folder_checks,
        folder_admin_checks,
        admin_checks,
        image_checks,
        model_service_checks,
        service_checks,
        session_default_checks,
    )
    for name, check in vars(module).items()
    if name.startswith("check_")
}


def run_check(name: str, scene: Scene) -> None:
    """Run a check; whatever is missing in what the client says or in the server's state makes it fail.

    Raises:
        AssertionError: and nothing else, when the server is at fault.
    """
    try:
        CHECKS[name](scene)
    except (LookupError, ValueError, BackendAPIError) as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
