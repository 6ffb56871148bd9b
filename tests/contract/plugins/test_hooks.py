"""The hooks of a site keep the contract; what breaks it is refused."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from ai.backend.common.errors import Forbidden, InvalidInput, PluginError, Unavailable
from ai.backend.manager.hooks import Hooks, HookSettings, load_hooks
from ai.backend.plugin.hooks import AbstractHook, Account, HookDenied, SessionRequest, SignOn
from ai.backend.plugin.testing.hooks import ACCOUNT, HOSTILE_TEXTS, HookContract, session_request
from tests.plugins.site_hooks import PolicySettings, SitePolicy, TokenSettings, TokenSignOn
from tests.support.entry_points import install_plugins

GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "write-a-site-plugin.md"
KEY = "a key that signs the tokens of the site"


def token(email: str = "user@example.com", *, key: str = KEY, expires_s: int = 60, **claims: Any) -> str:
    body = {"iss": "site", "aud": "backend.ai", "exp": int(time.time()) + expires_s, "email": email}
    return jwt.encode({**body, "email_verified": True, **claims}, key, algorithm="HS256")


class TestTokenSignOn(HookContract):
    def make(self) -> AbstractHook:
        return TokenSignOn(TokenSettings(key=KEY, issuer="site"))

    async def test_a_token_of_the_site_opens_its_own_account(self, hook: AbstractHook) -> None:
        async def asked(secret: str, name: str = "user@example.com") -> str | None:
            return await hook.sign_on(SignOn(name=name, secret=secret, address="192.0.2.1"))

        assert await asked(token()) == "user@example.com"
        wrong = [token(key=KEY + "x"), token(email="other@example.com"), token(aud="else"), token(email_verified=False)]
        assert [await asked(secret) for secret in wrong] == [None] * 4
        with pytest.raises(HookDenied, match="expired"):
            await asked(token(expires_s=-60))


class TestSitePolicy(HookContract):
    def make(self) -> AbstractHook:
        return SitePolicy(PolicySettings(images=("approved/*",), networks=("10.*",)))


class Broken(AbstractHook):
    async def sign_on(self, request: SignOn) -> str | None:
        return "root@local"

    async def check_session(self, request: SessionRequest) -> None:
        raise RuntimeError

    async def check_sign_on(self, account: Account, address: str) -> None:
        raise HookDenied


async def test_the_suite_can_fail() -> None:
    suite = HookContract()
    with pytest.raises(AssertionError):
        await suite.test_hostile_names_and_secrets_open_nothing(Broken(None), "")
    with pytest.raises(RuntimeError):
        await Broken(None).check_session(session_request())


async def test_a_hook_that_fails_refuses(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks([("first", SitePolicy(PolicySettings())), ("broken", Broken(None))])
    with pytest.raises(Unavailable):
        await hooks.check_session(session_request())
    with pytest.raises(Forbidden, match="policy of this site"):
        await hooks.check_sign_on(ACCOUNT, "192.0.2.1")


def test_hooks_are_enabled_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugins(tmp_path, monkeypatch)
    options = {"site-token": {"key": KEY, "issuer": "site"}}
    hooks = load_hooks(HookSettings(enabled=["policy", "site-token"], options=options))
    assert [name for name, _ in hooks.plugins] == ["policy", "site-token"]
    assert load_hooks(HookSettings()).plugins == []
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"enabled": ["none"]}, InvalidInput, "there is ldap, missing, oidc, policy, site-token, token, wrong"),
        ({"enabled": ["missing"]}, PluginError, "cannot be loaded: ModuleNotFoundError"),
        ({"enabled": ["wrong"]}, PluginError, "is no subclass of"),
        ({"enabled": ["site-token"]}, InvalidInput, "hooks.options.site-token.key: it is missing"),
        ({"enabled": ["policy"], "options": options}, InvalidInput, "which hooks.enabled does not name"),
        ({"enabled": ["policy"], "options": {"policy": {"x": 1}}}, InvalidInput, "options.policy.x: there is no such"),
    ]
    for settings, kind, text in refused:
        with pytest.raises(kind, match=text):
            load_hooks(HookSettings(**settings))


async def test_the_example_of_the_guide_keeps_the_contract() -> None:
    code, _ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    shown: dict[str, Any] = {"__name__": "acme_site"}
    exec(code, shown)
    hook = shown["Approved"](shown["Settings"](images=("cr.example.org/approved/*",)))
    suite = HookContract()
    for text in HOSTILE_TEXTS:
        await suite.test_hostile_names_and_secrets_open_nothing(hook, text)
        await suite.test_checks_answer_or_deny_with_a_reason(hook, text)
    with pytest.raises(HookDenied, match="not approved"):
        await hook.check_session(session_request())
