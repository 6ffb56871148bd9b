"""Defines the names of permit cookies, and checks the cookies of apps and the targets of redirects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

OUR_PREFIX = "backendai"
"""Begins the names of permits and of the console's login sessions. Browsers do not tell ports apart: a console at the
same host name gets the cookies that apps set, and apps would get its."""
PERMIT_PREFIX = f"{OUR_PREFIX}-permit-"
SECURE_PREFIX = "__Host-"
"""Browsers accept a cookie of such a name only by TLS, without a domain and for the path ``/``."""
PERMIT_S = 12 * 3600
"""Seconds that a permit is valid; it is renewed in use."""
MAX_REDIRECT_CHARACTERS = 2048

_REDIRECT_PATTERN = re.compile(r"/(?:[!-.0-\[\]-~][!-\[\]-~]*)?")
"""Visible ASCII without backslashes, and exactly one slash at the beginning."""


def permit_name(circuit: UUID, *, is_secure: bool) -> str:
    """Returns the name of a circuit's permit cookie. It differs by circuit since ports of one host share cookies."""
    return f"{SECURE_PREFIX if is_secure else ''}{PERMIT_PREFIX}{circuit.hex}"


def _is_platform_name(name: str) -> bool:
    lower_name = name.strip().lower()
    return lower_name.removeprefix(SECURE_PREFIX.lower()).startswith(OUR_PREFIX)


def split_cookies(lines: Iterable[str], name: str) -> tuple[list[str], str]:
    """Returns the values of the permit ``name`` and, separately, the cookies that go to the app.

    Permits of all circuits and login sessions of the console do not go to the app.
    """
    permit_values: list[str] = []
    app_cookies: list[str] = []
    for line in lines:
        if OUR_PREFIX not in line.lower():
            app_cookies.append(line)
            continue
        for cookie in line.split(";"):
            cookie_name, _, value = cookie.partition("=")
            if cookie_name.strip() == name:
                permit_values.append(value.strip())
            if not _is_platform_name(cookie_name) and cookie.strip():
                app_cookies.append(cookie.strip())
    return permit_values, "; ".join(app_cookies)


def accepts_app_cookie(set_cookie: str, host: str) -> bool:
    """Returns False for an app's Set-Cookie that uses one of the platform's names or would reach other hosts."""
    name_and_value, *attributes = set_cookie.split(";")
    if _is_platform_name(
        name_and_value.lstrip("= \t").partition("=")[0]
    ):  # a nameless cookie "=a=b" comes back as "a=b"
        return False
    for attribute in attributes:
        key, _, value = attribute.partition("=")
        if key.strip().lower() == "domain" and value.strip().lower().lstrip(".") not in ("", host):
            return False
    return True


def set_permit_cookie(name: str, value: str, *, is_secure: bool, max_age_s: int = PERMIT_S) -> str:
    """Returns the Set-Cookie header of a permit. The cookie is valid for the host that sets it only."""
    secure_attribute = "; Secure" if is_secure else ""
    return f"{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure_attribute}"


def is_local_redirect(target: str) -> bool:
    """Returns True if the target of a redirect is a path at the same origin.

    The target begins with exactly one slash, without control characters and backslashes, which browsers read as
    slashes.
    """
    return len(target) <= MAX_REDIRECT_CHARACTERS and _REDIRECT_PATTERN.fullmatch(target) is not None
