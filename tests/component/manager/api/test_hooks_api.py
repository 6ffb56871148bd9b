"""Hook plugins of a site, over REST: sign-on by its tokens, and its policies."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.plugin.hooks import AbstractHook
from tests.component.manager.api.conftest import Api
from tests.contract.plugins.test_hooks import KEY, Broken, token
from tests.plugins.site_hooks import PolicySettings, SitePolicy, TokenSettings, TokenSignOn
from tests.support.signed_http import RawClient, RawReply

USER = "other@local"


@pytest.fixture
def site(api: Api) -> Api:
    _plug(api, token=TokenSignOn(TokenSettings(key=KEY, issuer="site")))
    return api


def _plug(api: Api, **plugins: AbstractHook) -> None:
    api.cluster.manager.services.hooks.plugins = list(plugins.items())


async def _authorize(api: Api, secret: str, name: str = USER, **fields: Any) -> RawReply:
    body = {"type": "keypair", "domain": "default", "username": name, "password": secret, **fields}
    return await RawClient(port=api.port).request("POST", "/auth/authorize", json=body)


async def test_a_token_of_the_site_signs_on(site: Api) -> None:
    reply = await _authorize(site, token(USER))
    assert reply.status == 200, reply.body
    assert reply.json()["data"]["access_key"] == site.other.access_key
    assert (await _authorize(site, "a long password")).status == 200, "passwords stay good"
    for secret, name in ((token("else@local"), USER), (token("none@local"), "none@local"), ("wrong", USER)):
        assert (await _authorize(site, secret, name)).status == 401
    expired = await _authorize(site, token(USER, expires_s=-9))
    assert (expired.status, expired.json()["detail"]) == (403, "The token has expired: sign in to the site again.")


async def test_an_inactive_user_is_not_signed_on(site: Api) -> None:
    people = site.cluster.manager.services.users
    await people.modify_user(site.cluster.admin, USER, {"status": "inactive"})
    assert (await _authorize(site, token(USER))).status == 401


async def test_guesses_are_counted_also_with_plugins(site: Api) -> None:
    statuses = [(await _authorize(site, f"wrong{n}")).status for n in range(11)]
    assert (statuses[:10], statuses[10]) == ([401] * 10, 429)


async def test_a_policy_refuses_sign_on_and_sessions(api: Api) -> None:
    _plug(api, policy=SitePolicy(PolicySettings(images=("approved/*",), networks=("10.*",))))
    assert (await _authorize(api, "a long password")).status == 403
    refused = await api.user.request("POST", "/session", json={"image": "python"})
    assert (refused.status, refused.json()["data"]) == (403, {"hook": "policy"})
    assert "not approved" in refused.json()["detail"]
    _plug(api, policy=SitePolicy(PolicySettings()))
    assert (await api.create())["status"] == "RUNNING"


async def test_a_policy_that_fails_refuses(api: Api) -> None:
    _plug(api, broken=Broken(None))
    assert (await api.user.request("POST", "/session", json={"image": "python"})).status == 503
