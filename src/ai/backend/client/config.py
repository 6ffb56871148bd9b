"""Holds the endpoints and credentials of API sessions (spec 03-11 "Client configuration", 03-12 "Configuration").

Every setting is an argument of :class:`APIConfig`, else the variable ``BACKEND_<NAME>`` (or the older
``SORNA_<NAME>``), else a default. Files are not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from ai.backend.client.exceptions import BackendClientError, MissingCredentials
from ai.backend.client.types import undefined
from ai.backend.client.urls import normal_url
from ai.backend.common.signing import HASH_NAMES

if TYPE_CHECKING:
    from yarl import URL

T = TypeVar("T")

API_VERSION: Final = "v7.20230615"
"""The protocol that this client speaks."""

DEFAULTS: Final[Mapping[str, str | Mapping[str, str]]] = {
    "endpoint": "http://127.0.0.1:8091",
    "endpoint_type": "api",
    "domain": "default",
    "group": "default",
    "hash_type": "sha256",
    "version": API_VERSION,
    "connection_timeout": "10.0",
    "read_timeout": "0",
    "storage_proxy_address_map": {},
}

_VARIABLE_PREFIXES = ("BACKEND_", "SORNA_")
_TRUE_TEXTS = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE_TEXTS = frozenset({"", "0", "f", "false", "n", "no", "off"})


def get_env(key: str, default: Any = undefined, *, clean: Callable[[Any], T] = lambda value: value) -> T:
    """Returns the value of ``BACKEND_<KEY>``, or else ``SORNA_<KEY>``, or else ``default``, converted by ``clean``.

    Raises:
        KeyError: no variable is set and there is no default.
        BackendClientError: ``clean`` does not accept the value.
    """
    upper_key = key.upper()
    for prefix in _VARIABLE_PREFIXES:
        if prefix + upper_key in os.environ:
            raw_value: Any = os.environ[prefix + upper_key]
            break
    else:
        if default is undefined:
            raise KeyError(f"{_VARIABLE_PREFIXES[0]}{upper_key} is not set")
        raw_value = default
    try:
        return clean(raw_value)
    except ValueError as error:
        raise BackendClientError(f"{_VARIABLE_PREFIXES[0]}{upper_key} is {raw_value!r}: {error}") from error


def _parse_boolean(raw: str | bool) -> bool:
    lowered_text = str(raw).strip().lower()
    if lowered_text in _TRUE_TEXTS or lowered_text in _FALSE_TEXTS:
        return lowered_text in _TRUE_TEXTS
    raise ValueError("say yes or no")


def _split_names(raw: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in raw.split(",") if name.strip())


def _parse_seconds(raw: str | float) -> float:
    timeout_s = float(raw)
    if not timeout_s >= 0:
        raise ValueError("must not be negative")
    return timeout_s


def _parse_addresses(raw: str | Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(raw, str):
        return dict(raw)
    pairs = [assignment.partition("=") for assignment in _split_names(raw)]
    if not all(
        announced_address and equals_sign and reachable_address
        for announced_address, equals_sign, reachable_address in pairs
    ):
        raise ValueError("it is written ANNOUNCED=REACHABLE[,...]")
    return {announced_address: reachable_address for announced_address, _, reachable_address in pairs}


def _parse_urls(raw: str | URL) -> tuple[str, ...]:
    urls = tuple(normal_url(url_text) for url_text in _split_names(str(raw)))
    if not urls:
        raise ValueError("there must be at least one endpoint")
    return urls


class APIConfig:
    """Holds the settings of API sessions: the server's endpoints, the keypair, timeouts and TLS options.

    Only the endpoint in use, after a failure, and the proof change later.

    Args:
        endpoint: one URL, or several of the same cluster separated by commas: calls fail over among them.
        endpoint_type: ``api``. The other type of the spec, ``session``, belongs to web servers, which this client
            does not log in to yet.
        storage_proxy_address_map: URLs of storage proxies, as the manager names them -> how to reach them from here.
        access_key, secret_key: the keypair. An access key that is the empty string makes anonymous, unsigned requests.
        hash_type: the hash of the signature.
        connection_timeout, read_timeout: seconds; a read timeout of zero waits for ever.
        announcement_handler: called with the announcement of the administrators, if there is one, when a session opens.

    Raises:
        BackendClientError: a setting is malformed; the message names its variable.
    """

    DEFAULTS: ClassVar[Mapping[str, str | Mapping[str, str]]] = DEFAULTS
    """The defaults of the settings that the environment has, without the keys."""

    def __init__(
        self,
        *,
        endpoint: str | URL | None = None,
        endpoint_type: str | None = None,
        domain: str | None = None,
        group: str | None = None,
        storage_proxy_address_map: Mapping[str, str] | None = None,
        version: str | None = None,
        user_agent: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        hash_type: str | None = None,
        vfolder_mounts: Iterable[str] | None = None,
        skip_sslcert_validation: bool | None = None,
        connection_timeout: float | None = None,
        read_timeout: float | None = None,
        announcement_handler: Callable[[str], None] | None = None,
    ) -> None:
        def choose_value(key: str, value: Any, clean: Callable[[Any], T] = str) -> T:  # type: ignore[assignment]  # str is a T
            if value is None:
                return get_env(key, DEFAULTS.get(key, ""), clean=clean)
            try:
                return clean(value)
            except ValueError as error:
                raise BackendClientError(f"{key} is {value!r}: {error}") from error

        self.endpoint_urls: Sequence[str] = choose_value("endpoint", endpoint, _parse_urls)
        self.endpoint_type: str = choose_value("endpoint_type", endpoint_type)
        self.domain: str = choose_value("domain", domain)
        self.group: str = choose_value("group", group)
        self.storage_proxy_address_map: Mapping[str, str] = choose_value(
            "storage_proxy_address_map", storage_proxy_address_map, _parse_addresses
        )
        self.version: str = choose_value("version", version)
        self.user_agent: str = user_agent or "backendai client for Python"
        self.hash_type: str = choose_value("hash_type", hash_type).lower()
        self.proof = ""
        """A proof of who asks, which signed requests carry (``api_session.Auth.prove``)."""
        self.skip_sslcert_validation: bool = choose_value(
            "skip_sslcert_validation", skip_sslcert_validation, _parse_boolean
        )
        self.connection_timeout: float = choose_value("connection_timeout", connection_timeout, _parse_seconds)
        self.read_timeout: float = choose_value("read_timeout", read_timeout, _parse_seconds)
        self.vfolder_mounts: Sequence[str] = (
            choose_value("vfolder_mounts", None, _split_names) if vfolder_mounts is None else tuple(vfolder_mounts)
        )
        self.announcement_handler = announcement_handler
        self._access_key = access_key if access_key is not None else get_env("access_key", "", clean=str) or None
        self._secret_key: str = choose_value("secret_key", secret_key)
        if self.endpoint_type != "api":
            raise BackendClientError(f"BACKEND_ENDPOINT_TYPE is {self.endpoint_type!r}: only 'api' is supported yet")
        if self.hash_type not in HASH_NAMES:
            raise BackendClientError(f"hash_type is {self.hash_type!r}: known are {', '.join(HASH_NAMES)}")
        for key, header_value in (
            *(("access_key", self._access_key), ("secret_key", self._secret_key)),
            *(("domain", self.domain), ("version", self.version), ("user_agent", self.user_agent)),
        ):
            if not (header_value or "").isprintable():  # a header has no line ends, such as of files from Windows
                shown_value = "" if key == "secret_key" else f" is {header_value!r}"
                raise BackendClientError(
                    f"BACKEND_{key.upper()}{shown_value}: not all of its characters can be printed"
                )
        self._current = 0

    @property
    def endpoint_url(self) -> str:
        """Returns the URL of the endpoint in use."""
        return self.endpoint_urls[self._current]

    @property
    def endpoints(self) -> Sequence[URL]:
        """Returns the endpoints as URL objects, for programs that read the parts of URLs."""
        from yarl import URL

        return [URL(url) for url in self.endpoint_urls]

    @property
    def endpoint(self) -> URL:
        """Returns the URL object of the endpoint in use."""
        return self.endpoints[self._current]

    def fail_over(self) -> None:
        """Switches to the next endpoint."""
        self._current = (self._current + 1) % len(self.endpoint_urls)

    @property
    def is_anonymous(self) -> bool:
        """Returns True if requests are unsigned because the access key was deliberately set to an empty text."""
        return self._access_key == ""

    @property
    def has_credentials(self) -> bool:
        return bool(self._access_key and self._secret_key)

    @property
    def access_key(self) -> str:
        """Returns the access key. Raises MissingCredentials if none is configured."""
        if self._access_key is None:
            raise MissingCredentials("no access key is configured")
        return self._access_key

    @property
    def secret_key(self) -> str:
        """Returns the secret key. Raises MissingCredentials if none is configured."""
        if not self._secret_key:
            raise MissingCredentials("no secret key is configured")
        return self._secret_key


_config: APIConfig | None = None


def get_config() -> APIConfig:
    """Returns the configuration of this process. The default is made from the environment."""
    global _config  # noqa: PLW0603  # the process-wide default is the published interface
    if _config is None:
        _config = APIConfig()
    return _config


def set_config(conf: APIConfig | None) -> None:
    """Sets the configuration of this process. After None, the environment is read again."""
    global _config  # noqa: PLW0603  # the process-wide default is the published interface
    _config = conf
