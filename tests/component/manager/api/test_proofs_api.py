"""Recent proofs of who asks, for operations that a site names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ai.backend.manager.access.permissions import GRAVE_OPERATIONS, Operation
from ai.backend.manager.identity.proofs import PROOF_HEADER
from ai.backend.manager.identity.settings import PROVABLE_OPERATIONS, ProofSettings
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import PASSWORD, new_client, new_user
from tests.component.manager.api.test_totp_api import Later, enrolled
from tests.support.signed_http import RawClient, RawReply

PURGE = 'mutation { purge_user(email: "bob@local", props: {}) { ok msg } }'
FREEZE = {"status": "frozen"}


def demand(api: Api, *operations: Operation) -> None:
    api.cluster.manager.services.proofs._demanded = frozenset(operations or GRAVE_OPERATIONS)


async def prove(client: RawClient, **fields: str) -> RawReply:
    return await client.request("POST", "/auth/proof", json=fields)


async def proof_of(client: RawClient, **fields: str) -> str:
    reply = await prove(client, **fields)
    assert reply.status == 200, reply.body
    proof: str = reply.json()["proof"]
    return proof


async def gql(client: RawClient, query: str, proof: str = "") -> dict[str, Any]:
    headers = {PROOF_HEADER: proof} if proof else {}
    reply = await client.request("POST", "/admin/gql", json={"query": query, "variables": {}}, headers=headers)
    told: dict[str, Any] = reply.json()
    return told


async def superadmin(api: Api) -> RawClient:
    await new_user(api, "root@local", role="superadmin")
    return await new_client(api, "root@local")


async def test_by_default_nothing_takes_a_proof(api: Api) -> None:
    assert (await api.admin.request("PUT", "/manager/status", json=FREEZE)).status == 204
    assert api.cluster.manager.services.proofs._demanded == frozenset()


async def test_what_a_site_names_takes_a_recent_proof(api: Api) -> None:
    root = await superadmin(api)
    await new_user(api, "bob@local")
    demand(api, Operation.PURGE_USERS, Operation.CHANGE_STATE)
    refused = await gql(root, PURGE)
    assert not refused["data"]["purge_user"]["ok"]
    assert refused["extensions"]["problems"]["purge_user"]["type"].endswith("/proof-required")
    frozen = await root.request("PUT", "/manager/status", json=FREEZE)
    assert (frozen.status, frozen.problem, frozen.json()["data"]) == (403, "proof-required", {"proof": "required"})
    assert (await gql(root, '{ user(email: "bob@local") { email } }'))["data"]["user"], "nothing was done"

    proof = await proof_of(root, password=PASSWORD)
    assert (await gql(root, PURGE, proof))["data"]["purge_user"]["ok"]
    headers = {PROOF_HEADER: proof}
    assert (await root.request("PUT", "/manager/status", json=FREEZE, headers=headers)).status == 204
    announcement = {"enabled": True, "message": "x"}
    assert (await root.request("POST", "/manager/announcement", json=announcement, headers=headers)).status < 300


async def test_who_may_not_do_it_is_not_asked_for_a_proof(api: Api) -> None:
    demand(api)
    reply = await api.user.request("PUT", "/manager/status", json=FREEZE)
    assert (reply.status, reply.problem) == (403, "forbidden")


async def test_proofs_are_good_for_one_keypair_some_minutes_and_one_password(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await superadmin(api)
    await new_user(api, "eve@local", role="superadmin")
    eve = await new_client(api, "eve@local")
    demand(api, Operation.CHANGE_STATE)

    async def freeze(client: RawClient, proof: str) -> int:
        headers = {PROOF_HEADER: proof}
        return (await client.request("PUT", "/manager/status", json=FREEZE, headers=headers)).status

    proof = await proof_of(root, password=PASSWORD)
    assert await freeze(root, proof) == 204
    assert await freeze(eve, proof) == 403, "of somebody else"
    head, payload, signature = proof.split(".")
    for forged in ("x", "a.b.c", f"{head}.{payload}.", f"{head}.{payload}.{signature[::-1]}"):
        assert await freeze(root, forged) == 403, forged

    services = api.cluster.manager.services
    with monkeypatch.context() as patch:
        patch.setattr(services.proofs, "_clock", Later(services.clock, timedelta(minutes=11)))
        assert await freeze(root, proof) == 403, "too old"
    change = {"old_password": PASSWORD, "new_password": "another password", "new_password2": "another password"}
    assert (await root.request("POST", "/auth/update-password", json=change)).status == 200
    assert await freeze(root, proof) == 403, "of an earlier password"


async def test_wrong_passwords_are_counted_and_nothing_is_no_proof(api: Api) -> None:
    root = await superadmin(api)
    demand(api)
    assert (await prove(root)).status == 400
    assert (await prove(root, otp="123456")).status == 401, "there are no one-time passwords"
    statuses = [(await prove(root, password="wrong password")).status for _ in range(12)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert (await prove(root, password=PASSWORD)).status == 429


async def test_a_one_time_password_is_a_proof_once(api: Api) -> None:
    app = await enrolled(api)
    demand(api, Operation.ROTATE_OWN_KEYPAIRS)
    refused = await app.client.request("POST", "/auth/keypair/rotate")
    assert (refused.status, refused.problem) == (403, "proof-required")
    otp = app.code()
    proof = await proof_of(app.client, otp=otp)
    assert (await prove(app.client, otp=otp)).status == 401
    assert (await prove(app.client, otp=app.codes[0])).status == 200
    rotated = await app.client.request("POST", "/auth/keypair/rotate", headers={PROOF_HEADER: proof})
    assert rotated.status == 200


async def test_a_refusal_for_the_lack_of_one_is_not_the_answer_of_a_client_token(api: Api) -> None:
    root = await superadmin(api)
    demand(api, Operation.CHANGE_STATE)
    token = {"X-BackendAI-Client-Token": "a-token-of-the-client"}
    assert (await root.request("PUT", "/manager/status", json=FREEZE, headers=token)).status == 403
    headers = {**token, PROOF_HEADER: await proof_of(root, password=PASSWORD)}
    assert (await root.request("PUT", "/manager/status", json=FREEZE, headers=headers)).status == 204


GRAVE_CALLS = {
    Operation.CHANGE_USERS: 'mutation { modify_user(email: "bob@local", props: {full_name: "x"}) { ok } }',
    Operation.CHANGE_KEYPAIRS: 'mutation { create_keypair(user_id: "bob@local", props: {}) { ok } }',
    Operation.PURGE_GROUPS: 'mutation { purge_group(name: "default") { ok } }',
    Operation.CHANGE_DOMAINS: 'mutation { purge_domain(name: "default") { ok } }',
    Operation.CHANGE_POLICIES: 'mutation { delete_keypair_resource_policy(name: "default") { ok } }',
}


@pytest.mark.parametrize("operation", GRAVE_CALLS)
async def test_each_of_these_is_refused_without_one(api: Api, operation: Operation) -> None:
    root = await superadmin(api)
    await new_user(api, "bob@local")
    demand(api, operation)
    reply = await gql(root, GRAVE_CALLS[operation])
    (problem,) = reply["extensions"]["problems"].values()
    assert problem["type"].endswith("/proof-required")


def test_settings_name_operations() -> None:
    assert ProofSettings().demanded_operations == frozenset()
    assert ProofSettings(operations=["purge-users"]).demanded_operations == {Operation.PURGE_USERS}
    assert (
        ProofSettings(operations=["all"]).demanded_operations
        == GRAVE_OPERATIONS
        == frozenset(PROVABLE_OPERATIONS.values())
    )
    with pytest.raises(ValueError, match="fly"):
        ProofSettings(operations=["fly"])
