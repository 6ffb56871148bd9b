"""One-time passwords, recovery codes and the history of sign-ins, over REST."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pyotp

from ai.backend.common.structs import replace
from ai.backend.infra.clock import Clock
from ai.backend.manager.identity.settings import TotpSettings
from ai.backend.manager.identity.totp import MAX_FAILURES
from ai.backend.manager.identity.totp_registration import TOKEN_LIFE
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_passwords_api import authorize
from tests.component.manager.api.test_people_api import MODIFY, PASSWORD, new_user
from tests.component.manager.api.test_resource_groups_api import ask
from tests.support.signed_http import RawClient, RawReply


class Later:
    """A clock that is ahead of another."""

    def __init__(self, clock: Clock, ahead: timedelta) -> None:
        self._clock, self._ahead = clock, ahead

    def now(self) -> datetime:
        return self._clock.now() + self._ahead

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._ahead.total_seconds()


class App:
    """An authenticator app that has the key of a user, and the user's client."""

    def __init__(self, api: Api, client: RawClient, key: str) -> None:
        self.api, self.client, self.key = api, client, key
        self.codes: list[str] = []

    def code(self, *, steps: int = 0) -> str:
        now = self.api.cluster.manager.services.clock.now() + timedelta(seconds=30 * steps)
        return pyotp.TOTP(self.key).at(now)


async def enrolled(api: Api, email: str = "ann@local") -> App:
    await new_user(api, email)
    keys = (await authorize(api, PASSWORD, email)).json()["data"]
    client = RawClient(port=api.port, access_key=keys["access_key"], secret_key=keys["secret_key"])
    begun = (await client.request("POST", "/totp")).json()
    assert begun["totp_key"] in begun["totp_uri"]
    assert begun["totp_uri"].startswith("otpauth://totp/")
    app = App(api, client, begun["totp_key"])
    assert (await authorize(api, PASSWORD, email)).status == 200, "what is not confirmed counts for nothing"
    assert (await client.request("POST", "/totp/verify", json={"otp": "000000"})).status == 401
    confirmed = await client.request("POST", "/totp/verify", json={"otp": app.code(steps=-1)})
    assert confirmed.status == 200, confirmed.body
    app.codes = confirmed.json()["recovery_codes"]
    return app


async def test_a_sign_in_takes_a_password_that_is_good_once(api: Api) -> None:
    app = await enrolled(api)
    missing = await authorize(api, PASSWORD)
    assert (missing.status, missing.json()["detail"], missing.json()["data"]) == (
        401,
        "OTP not provided",
        {"otp": "missing"},
    )
    otp = app.code()
    assert (await authorize(api, "wrong password", otp=otp)).json()["detail"] != "OTP not provided"
    tries = await asyncio.gather(*(authorize(api, PASSWORD, otp=otp) for _ in range(3)))
    assert sorted(reply.status for reply in tries) == [200, 401, 401], "of tries at one moment too"
    assert (await authorize(api, PASSWORD, otp=app.code(steps=-1))).status == 401, "nor is an older one good"
    status = (await app.client.request("GET", "/totp")).json()
    assert (status["totp_activated"], status["recovery_codes_left"]) == (True, 10)
    shown = await ask(api, '{ user(email: "ann@local") { totp_activated password_changed_at } }')
    assert shown["totp_activated"] is True
    assert shown["password_changed_at"]


async def test_wrong_ones_are_counted_also_at_once(api: Api) -> None:
    app = await enrolled(api)
    assert (await authorize(api, PASSWORD, otp=app.code())).status == 200
    replies = await asyncio.gather(*(authorize(api, PASSWORD, otp=f"{n:06}") for n in range(2 * MAX_FAILURES)))
    assert sorted(reply.status for reply in replies) == [401] * MAX_FAILURES + [429] * MAX_FAILURES
    assert (await authorize(api, PASSWORD, otp=app.code(steps=1))).status == 429, "the right one too"
    assert (await authorize(api, PASSWORD, otp=app.codes[0])).status == 429


async def test_recovery_codes_are_good_once_each(api: Api) -> None:
    app = await enrolled(api)
    assert len(set(app.codes)) == 10
    assert (await authorize(api, PASSWORD, otp=app.codes[0])).status == 200
    assert (await authorize(api, PASSWORD, otp=app.codes[0])).status == 401
    assert (await authorize(api, PASSWORD, otp=app.codes[1].lower().replace("-", " "))).status == 200
    renewed = await app.client.request("POST", "/totp/recovery-codes", json={"otp": app.code()})
    assert renewed.status == 200
    assert (await authorize(api, PASSWORD, otp=app.codes[2])).status == 401
    assert (await authorize(api, PASSWORD, otp=renewed.json()["recovery_codes"][0])).status == 200


async def test_who_has_one_removes_them_and_an_administrator_helps_out(api: Api) -> None:
    app = await enrolled(api)
    assert (await app.client.request("POST", "/totp")).status == 409
    for otp in (None, "123456"):
        assert (await app.client.request("DELETE", "/totp", json={"otp": otp})).status == 401
    assert (await api.other.request("DELETE", "/totp", json={"email": "ann@local"})).status == 403
    assert (await app.client.request("DELETE", "/totp", json={"otp": app.code()})).status == 200
    assert (await authorize(api, PASSWORD)).status == 200
    assert (await app.client.request("DELETE", "/totp", json={"otp": "1"})).status == 404

    await enrolled(api, "bob@local")
    assert (await authorize(api, PASSWORD, "bob@local")).status == 401
    refused = await ask(api, MODIFY, e="ann@local", p={"totp_activated": True})
    assert not refused["ok"], "nobody activates them for others"
    assert (await ask(api, MODIFY, e="bob@local", p={"totp_activated": False}))["ok"]
    assert (await authorize(api, PASSWORD, "bob@local")).status == 200


async def test_a_forced_change_of_the_password_takes_one_too(api: Api) -> None:
    app = await enrolled(api)
    assert (await ask(api, MODIFY, e="ann@local", p={"need_password_change": True}))["ok"]
    otp = app.code()
    assert "must be changed" in (await authorize(api, PASSWORD, otp=otp)).body.decode()
    change: dict[str, Any] = {"username": "ann@local", "current_password": PASSWORD, "new_password": "another long one"}
    path, nobody = "/auth/update-password-no-auth", RawClient(port=api.port)
    assert (await nobody.request("POST", path, json=change)).json()["detail"] == "OTP not provided"
    assert (await nobody.request("POST", path, json={**change, "new_password": "x", "otp": otp})).status == 400
    assert (await nobody.request("POST", path, json={**change, "otp": otp})).status == 200, "it was not spent in vain"
    assert (await authorize(api, "another long one", otp=otp)).status == 401
    assert (await authorize(api, "another long one", otp=app.code(steps=1))).status == 200


async def test_the_history_shows_sign_ins_to_their_user_and_administrators(api: Api) -> None:
    app = await enrolled(api)
    await authorize(api, "wrong password")
    await authorize(api, PASSWORD)
    await authorize(api, PASSWORD, otp=app.code())
    told = (await app.client.request("GET", "/auth/sign-ins?limit=3")).json()
    assert [item["outcome"] for item in told["items"]] == ["ok", "auth-failed", "auth-failed"]
    assert told["items"][0]["address"] == "127.0.0.1"
    assert (told["items"][0]["method"], told["total_count"]) == ("password", 5)
    assert (await api.admin.request("GET", "/auth/sign-ins?email=ann@local")).json()["total_count"] == 5
    assert (await api.other.request("GET", "/auth/sign-ins?email=ann@local")).status == 404
    assert (await api.other.request("GET", "/auth/sign-ins")).json()["total_count"] == 0


async def test_where_they_are_required_a_sign_in_registers_them(api: Api) -> None:
    services = api.cluster.manager.services
    services.registration._settings = TotpSettings(required="everybody")
    await new_user(api, "ann@local")
    await new_user(api, "bob@local")
    assert "data" not in (await authorize(api, "wrong password")).json(), "who guesses gets no token"
    refused = await authorize(api, PASSWORD)
    assert (refused.status, refused.json()["data"]["otp"]) == (401, "unregistered")
    token = refused.json()["data"]["two_factor_registration_token"]
    nobody = RawClient(port=api.port, access_key="AKIANOBODY", secret_key="")

    async def post(path: str, token: str, **fields: str) -> RawReply:
        reply: RawReply = await nobody.request("POST", path, json={"registration_token": token, **fields})
        return reply

    header, claims, signature = token.split(".")
    bob = (await authorize(api, PASSWORD, "bob@local")).json()["data"]["two_factor_registration_token"]
    for forged in ("", "a.b.c", f"{header}.{bob.split('.')[1]}.{signature}", f"{header}.{claims}."):
        assert (await post("/totp/anon", forged)).status == 401
    first = (await post("/totp/anon", token)).json()
    begun = (await post("/totp/anon", token)).json()
    clock = services.clock
    assert (await post("/totp/anon/verify", token, otp=pyotp.TOTP(first["totp_key"]).at(clock.now()))).status == 401
    otp = pyotp.TOTP(begun["totp_key"]).at(clock.now())
    assert (await post("/totp/anon/verify", bob, otp=otp)).status in (401, 404), "it is no token of another's device"
    confirmed = await post("/totp/anon/verify", token, otp=otp)
    assert len(confirmed.json()["recovery_codes"]) == 10
    assert (await authorize(api, PASSWORD, otp=otp)).status == 401, "that one is spent"
    assert (await authorize(api, PASSWORD, otp=confirmed.json()["recovery_codes"][0])).status == 200
    assert (await post("/totp/anon", token)).status == 401, "the token replaces no device"
    assert (await ask(api, MODIFY, e="bob@local", p={"password": "a changed password"}))["ok"]
    assert (await post("/totp/anon", bob)).status == 401, "nor does it outlive the password"


async def test_administrators_alone_may_have_to_have_them(api: Api) -> None:
    services = api.cluster.manager.services
    services.registration._settings = TotpSettings(required="administrators")
    await new_user(api, "ann@local")
    await new_user(api, "boss@local", role="admin")
    assert (await authorize(api, PASSWORD)).status == 200
    refused = await authorize(api, PASSWORD, "boss@local")
    token = refused.json()["data"]["two_factor_registration_token"]
    tokens = services.registration.tokens
    services.registration.tokens = replace(tokens, clock=Later(services.clock, TOKEN_LIFE))
    nobody = RawClient(port=api.port, access_key="AKIANOBODY", secret_key="")
    late = await nobody.request("POST", "/totp/anon", json={"registration_token": token})
    assert (late.status, "expired" in late.body.decode()) == (401, True)


OWN = "{ totp { activated activated_at recovery_codes_left } }"
INITIALIZE = "mutation { initialize_totp { ok msg totp_key totp_uri } }"
ACTIVATE = "mutation($o: String!) { activate_totp(otp: $o) { ok msg recovery_codes } }"
RENEW = "mutation($o: String!) { renew_totp_recovery_codes(otp: $o) { ok msg recovery_codes } }"
REMOVE = "mutation($o: String, $e: String) { remove_totp(otp: $o, email: $e) { ok msg } }"


async def test_graphql_has_what_rest_has(api: Api) -> None:
    await new_user(api, "ann@local")
    keys = (await authorize(api, PASSWORD)).json()["data"]
    client = RawClient(port=api.port, access_key=keys["access_key"], secret_key=keys["secret_key"])
    assert await ask(api, OWN, client) == {"activated": False, "activated_at": None, "recovery_codes_left": 0}
    begun = await ask(api, INITIALIZE, client)
    assert begun["ok"]
    assert begun["totp_key"] in begun["totp_uri"]
    app = App(api, client, begun["totp_key"])
    assert not (await ask(api, ACTIVATE, client, o="000000"))["ok"]
    activated = await ask(api, ACTIVATE, client, o=app.code(steps=-1))
    assert len(activated["recovery_codes"]) == 10
    assert not (await ask(api, INITIALIZE, client))["ok"], "there is one already"
    own = await ask(api, OWN, client)
    shown = await ask(api, '{ user(email: "ann@local") { totp_activated totp_activated_at } }')
    assert (own["recovery_codes_left"], shown["totp_activated"]) == (10, True)
    assert shown["totp_activated_at"] == own["activated_at"] is not None

    assert not (await ask(api, RENEW, client, o="1"))["ok"]
    renewed = await ask(api, RENEW, client, o=activated["recovery_codes"][0])
    assert (await authorize(api, PASSWORD, otp=activated["recovery_codes"][1])).status == 401
    for variables in ({}, {"o": "1"}):
        assert not (await ask(api, REMOVE, client, **variables))["ok"]
    assert not (await ask(api, REMOVE, api.other, e="ann@local"))["ok"]
    assert (await ask(api, REMOVE, client, o=renewed["recovery_codes"][0]))["ok"]
    assert (await authorize(api, PASSWORD)).status == 200
    assert await ask(api, '{ user(email: "ann@local") { totp_activated_at } }') == {"totp_activated_at": None}


async def test_an_administrator_takes_them_away_and_the_trail_has_no_codes(api: Api) -> None:
    app = await enrolled(api)
    assert not (await ask(api, REMOVE, app.client, o=app.codes[0] + "x"))["ok"]
    assert (await ask(api, REMOVE, e="ann@local"))["ok"]
    assert (await authorize(api, PASSWORD)).status == 200
    trail = await api.admin.request("GET", "/logs/audit?text=totp&limit=100")
    removed = [item["object_id"] for item in trail.json()["items"] if item["operation"] == "remove_totp"]
    assert removed == ["ann@local", "ann@local"]
    assert app.codes[0].encode() not in trail.body
