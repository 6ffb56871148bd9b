"""The errors of the app proxy have the codes and texts of spec 03-15."""

from __future__ import annotations

import pytest

from ai.backend.common import appproxy_errors as errors
from ai.backend.common.errors import BackendError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.Misconfigured("coordinator", "api_secret"), "E00001: Server misconfigured - coordinator:api_secret"),
        (errors.NoSuchObject("circuit"), "E00002: No such coordinator:circuit"),
        (errors.NoSuchObject("circuit", "worker"), "E00002: No such worker:circuit"),
        (errors.WorkerSilent(), "E10001: Proxy worker not responding"),
        (errors.RouteNotDelivered(), "E20001: Route event not delivered to worker"),
        (errors.ProtocolNotInteractive(), "E20002: Protocol not available as interactive app"),
        (errors.FrontendTimeout(), "E20003: Timed out while waiting for proxy frontend to set up"),
        (errors.CookieMissing(), "E20004: Authorization cookie not provided"),
        (errors.CookieInvalid(), "E20005: Invalid authorization cookie"),
        (errors.HeaderMissing(), "E20006: Authorization header not provided"),
        (errors.MethodUnsupported("Basic"), "E20007: Unsupported authorization method Basic"),
        (errors.TokenMismatch(), "E20008: Authorization token mismatch"),
        (errors.SubdomainUnknown("abc"), "E20009: Subdomain abc not registered"),
        (errors.NotForInference(), "E20011: Not supported for inference apps"),
        (errors.NotForInteractive(), "E20012: Not supported for interactive apps"),
        (errors.RegistrationFailed(), "E20013: Failed to register worker to coordinator"),
    ],
)
def test_the_text_of_each_error_is_the_published_one(error: BackendError, text: str) -> None:
    assert error.message == text
    assert error.code == text[:6]
