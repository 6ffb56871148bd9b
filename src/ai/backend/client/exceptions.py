"""Defines the exceptions of the SDK.

BackendError
├── BackendAPIError          the server answered, and the answer is no
└── BackendClientError       there was no usable answer, or no request could be made
    ├── MissingCredentials       no access key or no secret key
    ├── EndpointUnreachable      none of the endpoints took the connection
    └── UnusableReply            an answer that is not what the API promises
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class BackendError(Exception):
    """Serves as the base of all errors of the SDK."""


class BackendAPIError(BackendError):
    """Raised for a problem document of the server (RFC 7807).

    Attributes:
        status: the HTTP status.
        reason: the reason phrase of the status line.
        data: the problem document; has ``type`` and ``title``, often ``msg`` and ``data``.
    """

    def __init__(self, status: int, reason: str, data: Mapping[str, Any] | None = None) -> None:
        self.status = status
        self.reason = reason
        self.data: dict[str, Any] = dict(data or {})
        self.data.setdefault("type", "https://api.backend.ai/probs/generic-error")
        self.data.setdefault("title", reason or f"HTTP status {status}")
        super().__init__(status, reason, self.data)

    @property
    def code(self) -> str:
        """Returns the last part of the problem's type, such as ``session-already-exists``."""
        return str(self.data["type"]).rstrip("/").rsplit("/", 1)[-1]

    def __str__(self) -> str:
        message = str(self.data.get("msg") or self.data.get("detail") or self.data["title"])
        invalid_fields = self.data.get("data")
        if self.code == "invalid-api-params" and isinstance(invalid_fields, Mapping) and invalid_fields:
            field_problems = [
                f"{field}: {reason}"
                for field, reason in invalid_fields.items()
                if not isinstance(reason, Mapping | list)
            ]
            unmentioned_problems = [problem for problem in field_problems if problem not in message]
            message += f" ({'; '.join(unmentioned_problems)})" if unmentioned_problems else ""
        return f"{message} [{self.status} {self.code}]"


class BackendClientError(BackendError):
    """Raised for a failure of the client or of its connection."""


class MissingCredentials(BackendClientError):
    """Raised when no access key or no secret key is configured."""


class EndpointUnreachable(BackendClientError):
    """Raised when no configured endpoint accepted the request."""


class UnusableReply(BackendClientError):
    """Raised when the server's answer is not a valid reply of this API."""
