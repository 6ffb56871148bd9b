"""Signs users in by their password in a directory (RFC 4511, RFC 4513), with ldap3."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, model_validator

from ai.backend.common.errors import PluginError
from ai.backend.hook.mapping import MappingSettings, site_user
from ai.backend.plugin.hooks import AbstractHook, HookDenied, SignOn, SiteUser

try:
    import ldap3
    from ldap3.core.exceptions import LDAPBindError, LDAPException, LDAPInvalidCredentialsResult, LDAPSASLPrepError
    from ldap3.utils.conv import escape_filter_chars
except ImportError:  # the class below says so
    ldap3 = None

_MAX_NAME_LENGTH, _MAX_SECRET_LENGTH = 256, 1_024
_THREADS = 4


class LdapSettings(MappingSettings):
    """Settings of the directory."""

    uri: str = Field(
        ..., pattern=r"^ldaps?://[^/?#@]+$", description="ldaps://host[:port], or ldap://host[:port] with STARTTLS."
    )
    allows_plaintext: bool = Field(
        False, description="Whether passwords go to ldap:// without TLS; for a directory on the same machine."
    )
    ca_file: Path | None = Field(
        None, description="Certificates that the directory's is verified by; unset: the system's."
    )
    bind_dn: str = Field("", description="The entry that searches; empty: anybody may search.")
    bind_password: SecretStr = Field(SecretStr(""), description="Its password.")
    base_dn: str = Field(..., min_length=1, description="Below it are the users.")
    user_filter: str = Field(
        "(uid={name})", description="Finds the one entry of a user; {name} is what the user typed, escaped."
    )
    email_attribute: str = Field(
        "mail",
        min_length=1,
        description="It names the account here: users must not be able to change it.",
    )
    username_attribute: str = Field("uid", min_length=1, description="The name of new users.")
    full_name_attribute: str = Field("cn", min_length=1, description="The full name of new users.")
    group_base_dn: str = Field("", description="Below it are the groups; empty: groups are not asked for.")
    group_filter: str = Field("(member={dn})", description="Finds the groups of a user; {dn} is the user's entry.")
    group_name_attribute: str = Field("cn", min_length=1, description="The name of a group.")
    timeout_s: int = Field(5, ge=1, le=60, description="How long the directory has for each answer, in seconds.")

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        if "{name}" not in self.user_filter or "{dn}" not in self.group_filter:
            raise ValueError("user-filter has {name}, group-filter has {dn}")
        if self.bind_dn and not self.bind_password.get_secret_value():
            raise ValueError("bind-dn without bind-password would search as nobody")
        return self


class LdapSignOn(AbstractHook):
    """Signs a user on if a directory accepts the user's name and password in a bind.

    A name that the directory does not know costs a bind as well, and gets the same answer as a wrong password: then the
    manager's own passwords decide.
    """

    settings_model = LdapSettings

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if ldap3 is None:
            raise PluginError("The hook ldap needs the package ldap3: install backendai[ldap].")
        self._options: LdapSettings = settings
        self._server = self._make_server()
        self._threads: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ldap")

    async def stop(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def sign_on_user(self, request: SignOn) -> SiteUser | None:
        """Returns the user of a name and password, or None if the directory does not know the user. Raises HookDenied
        for a user whom no group admits.
        """
        name, secret = request.name, request.secret
        # An empty password would bind as nobody, and succeed (RFC 4513, 5.1.2).
        if not name or not secret or len(name) > _MAX_NAME_LENGTH or len(secret) > _MAX_SECRET_LENGTH:
            return None
        if "\0" in name + secret or not _is_text(name + secret):
            return None
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._find_user, name, secret)

    def _make_server(self) -> Any:
        options = self._options
        ca_file = str(options.ca_file) if options.ca_file is not None else None
        tls_options = ldap3.Tls(validate=ssl.CERT_REQUIRED, version=ssl.PROTOCOL_TLS_CLIENT, ca_certs_file=ca_file)
        return ldap3.Server(
            options.uri,
            use_ssl=options.uri.startswith("ldaps:"),
            tls=tls_options,
            get_info=ldap3.NONE,
            connect_timeout=options.timeout_s,
        )

    @contextmanager
    def _bound_connection(self, user_dn: str, password: str) -> Iterator[Any]:
        """Yields a connection that is bound as ``user_dn``, or anonymously without a user, and closes it. Raises
        LDAPException.
        """
        options = self._options
        connection = ldap3.Connection(
            self._server,
            user=user_dn or None,
            password=password or None,
            authentication=ldap3.SIMPLE if user_dn else ldap3.ANONYMOUS,
            client_strategy=ldap3.SYNC,
            receive_timeout=options.timeout_s,
            auto_referrals=False,
            read_only=True,
            raise_exceptions=True,
        )
        try:
            connection.open(read_server_info=False)
            if options.uri.startswith("ldap:") and not options.allows_plaintext:
                connection.start_tls(read_server_info=False)
            connection.bind(read_server_info=False)
            yield connection
        finally:
            with suppress(LDAPException, OSError):
                connection.unbind()
            if connection.socket is not None:  # ldap3 leaves it open after some failures
                connection.socket.close()

    def _find_user(self, name: str, secret: str) -> SiteUser | None:
        """Returns the user of a name and password, in a thread. Raises LDAPException, HookDenied."""
        options = self._options
        with self._bound_connection(options.bind_dn, options.bind_password.get_secret_value()) as connection:
            attributes = [options.email_attribute, options.username_attribute, options.full_name_attribute]
            query = options.user_filter.replace("{name}", escape_filter_chars(name))
            entries = _search_entries(connection, options.base_dn, query, attributes)
            dn = entries[0]["dn"] if len(entries) == 1 else f"cn=nobody,{options.base_dn}"
            if not self._can_bind(dn, secret) or len(entries) != 1:
                return None
            user_attributes = entries[0]["attributes"]
            group_names = self._group_names(connection, dn)
        email = _first_value(user_attributes.get(options.email_attribute))
        if not email:
            raise HookDenied("The directory has no e-mail address of yours: tell an administrator.")
        return site_user(
            options,
            email=email,
            username=_first_value(user_attributes.get(options.username_attribute)),
            full_name=_first_value(user_attributes.get(options.full_name_attribute)),
            groups=group_names,
        )

    def _can_bind(self, dn: str, secret: str) -> bool:
        try:
            with self._bound_connection(dn, secret):
                return True
        except (LDAPBindError, LDAPInvalidCredentialsResult, LDAPSASLPrepError):  # the last: no password of RFC 4013
            return False

    def _group_names(self, connection: Any, dn: str) -> list[str]:
        options = self._options
        if not options.group_base_dn:
            return []
        query = options.group_filter.replace("{dn}", escape_filter_chars(dn))
        entries = _search_entries(connection, options.group_base_dn, query, [options.group_name_attribute])
        return [_first_value(entry["attributes"].get(options.group_name_attribute)) for entry in entries]


def _search_entries(connection: Any, base_dn: str, query: str, attributes: list[str]) -> list[Any]:
    connection.search(base_dn, query, search_scope=ldap3.SUBTREE, attributes=attributes)
    return [entry for entry in connection.response if entry["type"] == "searchResEntry"]


def _first_value(attribute_value: Any) -> str:
    """Returns the first value of an attribute, or an empty text."""
    attribute_values = attribute_value if isinstance(attribute_value, list) else [attribute_value]
    return str(attribute_values[0]) if attribute_values and attribute_values[0] is not None else ""


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True
