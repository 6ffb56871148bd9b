"""Checks a request for a session as far as no stored data is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from ai.backend.common.devices import VariantProperty
from ai.backend.common.errors import InvalidInput
from ai.backend.common.names import check_env_name, check_session_name
from ai.backend.common.states import SessionType
from ai.backend.manager.agents.capabilities import ENCRYPTION
from ai.backend.manager.sessions.model import CreateSession
from ai.backend.manager.sessions.settings import SessionSettings

_DURATION_PATTERN = re.compile(r"\+?(?P<number>\d{1,9}(?:\.\d{1,6})?)\s*(?P<unit>[smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MAX_PORTS = 20
_MAX_REQUIREMENTS = 32


def parse_start(text: str, now: datetime) -> datetime:
    """Parses ISO 8601 (UTC by default) or a duration from now, as ``90s`` or ``1.5h``. Raises InvalidInput."""
    match = _DURATION_PATTERN.fullmatch(text.strip())
    try:
        if match is not None:
            return now + timedelta(seconds=float(match["number"]) * _UNIT_SECONDS[match["unit"]])
        start_time = datetime.fromisoformat(text.strip())
        return start_time.replace(tzinfo=UTC) if start_time.tzinfo is None else start_time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("starts_at is neither a time nor a duration", data={"starts_at": "malformed"}) from None


def check_environ(environ: Mapping[str, str], *, max_bytes: int) -> dict[str, str]:
    """Checks the environment variables of a request and returns a copy; raises InvalidInput.

    A shell must accept the names, no value may have a NUL, and the total size must be allowed.
    """
    for name, value in environ.items():
        check_env_name(name)
        if "\0" in value:
            raise InvalidInput(f"{name} contains a NUL", data={"config.environ": "malformed"})
    if sum(len(name.encode()) + len(value.encode()) for name, value in environ.items()) > max_bytes:
        raise InvalidInput(f"environ exceeds {max_bytes} bytes", data={"config.environ": "too large"})
    return dict(environ)


def check_text(text: str | None, field: str, limit: int) -> str | None:
    """Returns ``text`` if it has no NUL and at most ``limit`` bytes. Raises InvalidInput with ``field``."""
    if text is not None and (len(text.encode()) > limit or "\0" in text):
        raise InvalidInput(f"{field} exceeds {limit} bytes or contains a NUL", data={field: "too large or malformed"})
    return text


def check_callback(url: str | None) -> str | None:
    """Returns ``url`` if it is an HTTP URL. Raises InvalidInput."""
    if url is None:
        return None
    try:
        url_parts = urlsplit(url)
    except ValueError:
        url_parts = urlsplit("")
    # urlsplit drops line breaks silently; the HTTP client would not
    is_text = url.isprintable() and " " not in url
    if len(url) > 2048 or not is_text or url_parts.scheme not in ("http", "https") or not url_parts.hostname:
        raise InvalidInput("callback_url is not an http(s) URL", data={"callback_url": "malformed"})
    return url


_BOOLEAN_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def check_flags(request: CreateSession) -> dict[str, str]:
    """Returns the boolean resource options in one spelling: preemptible, restartable and the encryption of the network.
    Raises InvalidInput for other values, and if an interactive session is to start over, which would lose its user's
    work."""
    flags: dict[str, str] = {}
    for name in ("preemptible", "restartable", ENCRYPTION):
        if (value := request.resource_opts.get(name)) is None:
            continue
        parsed_flag = _BOOLEAN_WORDS.get(str(value).strip().lower())
        if parsed_flag is None:
            raise InvalidInput(f"{name} is true or false", data={"config.resource_opts": f"{name}: malformed"})
        if parsed_flag and name == "restartable" and request.type is not SessionType.BATCH:
            message = "Only a batch session can start over."
            raise InvalidInput(message, data={"config.resource_opts": "restartable: not a batch session"})
        flags[name] = str(parsed_flag).lower()
    return flags


def check_requirements(requirement_texts: Sequence[str]) -> tuple[str, ...]:
    """Returns requirements in their canonical form, each once; the scheduler decides if a device meets them. Raises
    InvalidInput for too many, and for one that is not ``namespace::feature::value`` of printable text."""
    field = "config.variant_requirements"
    if len(requirement_texts) > _MAX_REQUIREMENTS:
        message = f"a session may have {_MAX_REQUIREMENTS} variant requirements at most"
        raise InvalidInput(message, data={field: "too many"})
    for text in requirement_texts:
        if not text.isprintable():
            raise InvalidInput(f"{text[:64]!r} has characters that do not print", data={field: "malformed"})
    try:
        return tuple(dict.fromkeys(str(VariantProperty.parse(text)) for text in requirement_texts))
    except InvalidInput as e:
        raise InvalidInput(e.message, data={field: "malformed"}) from None


def check_ports(ports: Sequence[int]) -> tuple[int, ...]:
    """Returns the ports that the request wants to open at the start of the session. Raises InvalidInput."""
    if len(ports) > _MAX_PORTS or len(set(ports)) != len(ports) or any(not 1024 <= port <= 65535 for port in ports):
        message = f"preopen_ports takes up to {_MAX_PORTS} different ports of 1024 to 65535"
        raise InvalidInput(message, data={"config.preopen_ports": "out of range"})
    return tuple(ports)


def check_shape(request: CreateSession, settings: SessionSettings) -> None:
    """Checks the form of a request: names, sizes, times, type and texts, without stored data. Raises InvalidInput with
    the field.
    """
    if request.name is not None:
        check_session_name(request.name)
    if not 1 <= request.cluster_size <= settings.max_cluster_size:
        bounds = settings.max_cluster_size
        raise InvalidInput(f"clusterSize must be 1 to {bounds}", data={"clusterSize": "out of range"})
    if request.max_wait_s < 0:
        raise InvalidInput("maxWaitSeconds must not be negative", data={"maxWaitSeconds": "out of range"})
    if request.type is SessionType.INFERENCE and request.endpoint_id is None:
        raise InvalidInput("inference sessions are made by model services", data={"type": "not supported"})
    if request.type is SessionType.BATCH and not (request.startup_command or "").strip():
        raise InvalidInput("a batch session needs a startupCommand", data={"startupCommand": "missing"})
    for name, value in (("batch_timeout", request.batch_timeout_s), ("exec_timeout", request.exec_timeout_s)):
        if value is not None and not 0 < value <= 366 * 86_400:
            raise InvalidInput(f"{name} must be positive seconds", data={name: "out of range"})
    check_text(request.tag, "tag", 256)
    if request.tag is not None and not request.tag.isprintable():
        raise InvalidInput("a tag has no control characters", data={"tag": "malformed"})
    check_text(request.startup_command, "startupCommand", settings.max_script_bytes)
    check_text(request.bootstrap_script, "bootstrap_script", settings.max_script_bytes)


OPTIONS = frozenset({"shmem", "allow_fractional_resource_fragmentation", "preemptible", "restartable", ENCRYPTION})
