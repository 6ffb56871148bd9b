"""Errors of the app proxy, with the codes and texts of spec 03-15."""

from __future__ import annotations

from ai.backend.common.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    PeerRefused,
    Unavailable,
)


class Misconfigured(InvalidInput, code="E00001", title="E00001: Server misconfigured"):
    def __init__(self, component: str, key: str) -> None:
        super().__init__(f"E00001: Server misconfigured - {component}:{key}", data={key: "misconfigured"})


class NoSuchObject(NotFound, code="E00002", title="E00002: No such object"):
    def __init__(self, name: str, component: str = "coordinator") -> None:
        super().__init__(f"E00002: No such {component}:{name}")


class WorkerSilent(Unavailable, code="E10001", title="E10001: Proxy worker not responding"): ...


class RouteNotDelivered(Unavailable, code="E20001", title="E20001: Route event not delivered to worker"): ...


class ProtocolNotInteractive(
    InvalidInput, code="E20002", title="E20002: Protocol not available as interactive app"
): ...


class FrontendTimeout(
    DeadlineExceeded, code="E20003", title="E20003: Timed out while waiting for proxy frontend to set up"
): ...


class CookieMissing(AuthenticationFailed, code="E20004", title="E20004: Authorization cookie not provided"): ...


class CookieInvalid(AuthenticationFailed, code="E20005", title="E20005: Invalid authorization cookie"): ...


class HeaderMissing(AuthenticationFailed, code="E20006", title="E20006: Authorization header not provided"): ...


class MethodUnsupported(AuthenticationFailed, code="E20007", title="E20007: Unsupported authorization method"):
    def __init__(self, auth_type: str) -> None:
        super().__init__(f"E20007: Unsupported authorization method {auth_type[:32]}")


class TokenMismatch(AuthenticationFailed, code="E20008", title="E20008: Authorization token mismatch"): ...


class SubdomainUnknown(NotFound, code="E20009", title="E20009: Subdomain not registered"):
    def __init__(self, subdomain: str) -> None:
        super().__init__(f"E20009: Subdomain {subdomain[:63]} not registered")


class NotForInference(InvalidInput, code="E20011", title="E20011: Not supported for inference apps"): ...


class NotForInteractive(InvalidInput, code="E20012", title="E20012: Not supported for interactive apps"): ...


class RegistrationFailed(PeerRefused, code="E20013", title="E20013: Failed to register worker to coordinator"): ...
