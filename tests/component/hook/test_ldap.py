"""Sign-on by a real directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from ai.backend.hook.ldap.plugin import LdapSettings, LdapSignOn
from ai.backend.manager.hooks import Hooks
from ai.backend.plugin.hooks import AbstractHook, HookDenied, SignOn, SiteUser
from ai.backend.plugin.testing.hooks import HookContract
from tests.support.slapd import ADMIN, ADMIN_PASSWORD, BASE, PASSWORD, Slapd

pytestmark = pytest.mark.needs("slapd")


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    server = Slapd(tmp_path_factory.mktemp("slapd"))
    server.start()
    yield server
    server.stop()


def settings_of(slapd: Slapd, **more: Any) -> LdapSettings:
    given = {
        "uri": slapd.tls_uri,
        "ca_file": slapd.certificate,
        "base_dn": f"ou=people,{BASE}",
        "group_base_dn": f"ou=groups,{BASE}",
        "groups": {"research": {"domain": "default", "projects": ["lab"]}, "else": {"projects": ["attic"]}},
    }
    return LdapSettings.model_validate({**given, **more})


@pytest.fixture
async def hook(slapd: Slapd) -> AsyncIterator[LdapSignOn]:
    hook = LdapSignOn(settings_of(slapd))
    await hook.start()
    yield hook
    await hook.stop()


async def asked(hook: AbstractHook, name: str, secret: str = PASSWORD) -> SiteUser | None:
    return await hook.sign_on_user(SignOn(name=name, secret=secret, address="192.0.2.1"))


class TestContract(HookContract):
    @pytest.fixture(autouse=True)
    def _directory(self, slapd: Slapd) -> None:
        self.slapd = slapd

    def make(self) -> AbstractHook:
        return LdapSignOn(settings_of(self.slapd))


async def test_a_password_of_the_directory_signs_on(hook: LdapSignOn) -> None:
    assert await asked(hook, "ann") == SiteUser(
        email="ann@example.org",
        username="ann",
        full_name="Ann Smith",
        domain_name="default",
        project_names=("lab",),
        managed_projects=("lab", "attic"),
        may_create=True,
        may_be_admin=False,
    )
    bob = await asked(hook, "bob")
    assert bob is not None
    assert (bob.domain_name, bob.project_names) == (None, ())
    for name, secret in (("ann", "wrong"), ("nobody", PASSWORD), ("nobody", "wrong")):
        assert await asked(hook, name, secret) is None


@pytest.mark.parametrize(
    "name",
    ["*", "a*", "ann)(uid=*", "*)(|(uid=*", "ann)(!(uid=bob)", "\\2a", "ann\0", "ann)(userPassword=*", "uid=ann", ""],
)
async def test_a_name_is_no_filter(hook: LdapSignOn, name: str) -> None:
    assert await asked(hook, name) is None


async def test_an_empty_password_is_no_anonymous_bind(hook: LdapSignOn) -> None:
    for name in ("ann", "bob", "nobody"):
        assert await asked(hook, name, "") is None
        assert await asked(hook, name, "\0") is None


async def test_only_named_groups_admit(slapd: Slapd) -> None:
    hook = LdapSignOn(settings_of(slapd, requires_group=True, bind_dn=ADMIN, bind_password=ADMIN_PASSWORD))
    await hook.start()
    assert await asked(hook, "ann") is not None
    with pytest.raises(HookDenied, match="None of your groups"):
        await asked(hook, "bob")
    await hook.stop()


async def test_passwords_go_by_tls_alone(slapd: Slapd, caplog: pytest.LogCaptureFixture) -> None:
    """By STARTTLS too; a certificate that nothing vouches for ends the connection, and passwords of users decide."""
    by_start_tls = LdapSignOn(settings_of(slapd, uri=slapd.uri))
    assert await asked(by_start_tls, "ann") is not None
    stranger = LdapSignOn(settings_of(slapd, uri=slapd.uri, ca_file=None))
    away = LdapSignOn(settings_of(slapd, uri="ldaps://127.0.0.1:9"))
    hooks = Hooks([("stranger", stranger), ("away", away)])
    assert await hooks.sign_on(SignOn(name="ann", secret=PASSWORD, address="192.0.2.1")) is None
    assert caplog.text.count("failed to sign on a user") == 2
    assert PASSWORD not in caplog.text


def test_settings_that_would_let_anybody_in_are_refused(slapd: Slapd) -> None:
    for wrong in (
        {"uri": "http://127.0.0.1"},
        {"user_filter": "(uid=ann)"},
        {"bind_dn": ADMIN},
        {"groups": {"superadmin": {"role": "superadmin"}}},
        {"groups": {"superadmin": {"domain": ""}}},
    ):
        with pytest.raises(ValidationError):
            settings_of(slapd, **wrong)
