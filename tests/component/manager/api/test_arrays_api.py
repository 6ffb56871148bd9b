"""Arrays of batch sessions over REST (docs/decisions/0276)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_folders_api import call, make
from tests.support.signed_http import RawClient, RawReply


def body(indices: str, **session: Any) -> dict[str, Any]:
    request = {"image": "python", "type": "batch", "startupCommand": "true", "name": "sweep", **session}
    return {"indices": indices, "session": request}


async def submit(api: Api, indices: str, client: RawClient | None = None, **session: Any) -> dict[str, Any]:
    reply = await (client or api.user).request("POST", "/arrays", json=body(indices, **session))
    assert reply.status == 201, reply.body
    array: dict[str, Any] = reply.json()
    return array


async def array_of(api: Api, ref: str = "sweep", client: RawClient | None = None) -> dict[str, Any]:
    array: dict[str, Any] = (await (client or api.user).request("GET", f"/arrays/{ref}")).json()
    return array


async def until(
    api: Api, reached: Callable[[dict[str, Any]], bool], ref: str = "sweep", client: RawClient | None = None
) -> dict[str, Any]:
    for _ in range(500):
        array = await array_of(api, ref, client)
        if reached(array):
            return array
        await asyncio.sleep(0.02)
    raise AssertionError(await array_of(api, ref, client))


def has_running(number: int, array: dict[str, Any]) -> bool:
    return bool(array["counts"].get("RUNNING") == number)


async def end_all(api: Api, exit_code: Callable[[int], int] = lambda _: 0) -> None:
    """Ends every element that runs, with an exit code by its index."""
    for kernel_id, held in list(api.agent.kernels.items()):
        if held.status is KernelStatus.RUNNING and "BACKENDAI_ARRAY_INDEX" in held.spec.environ:
            code = exit_code(int(held.spec.environ["BACKENDAI_ARRAY_INDEX"]))
            reason = KernelEventReason.TASK_FINISHED if code == 0 else KernelEventReason.TASK_FAILED
            await api.agent.tell(kernel_id, held.attempt, KernelStatus.TERMINATED, reason=reason, exit_code=code)


async def test_an_array_is_many_batch_sessions(api: Api) -> None:
    array = await submit(api, "1-3,7", tag="t")
    assert (array["name"], array["size"], array["maxParallel"]) == ("sweep", 4, None)
    await until(api, lambda array: array["counts"] == {"RUNNING": 4})
    variables = {spec.environ["BACKENDAI_ARRAY_INDEX"]: spec.environ for spec in api.agent.created}
    assert set(variables) == {"1", "2", "3", "7"}
    assert {key: variables["7"][f"BACKENDAI_ARRAY_{key}"] for key in ("ID", "NAME", "COUNT", "MIN", "MAX")} == {
        "ID": array["id"],
        "NAME": "sweep",
        "COUNT": "4",
        "MIN": "1",
        "MAX": "7",
    }
    element = (await api.user.request("GET", "/session/sweep-7")).json()
    assert (element["name"], element["type"], element["tag"]) == ("sweep-7", "batch", "t")
    listed = await api.gql(
        'query { a: compute_session_list(limit: 9, offset: 0, filter: "array_id == null") { total_count } '
        f'b: compute_session_list(limit: 9, offset: 0, filter: "array_id == \\"{array["id"]}\\"", order: "array_index")'
        " { items { name array_name array_index } } }"
    )
    assert listed["data"]["a"]["total_count"] == 0
    assert [item["array_index"] for item in listed["data"]["b"]["items"]] == [1, 2, 3, 7]
    await end_all(api)
    assert (await until(api, lambda array: array["counts"] == {"SUCCESS": 4}))["status"] == "SUCCESS"


async def test_no_more_elements_run_than_it_allows(api: Api) -> None:
    await submit(api, "1-5%2")
    for ended in (0, 2, 4):
        running = min(2, 5 - ended)
        array = await until(api, partial(has_running, running))
        assert array["counts"].get("SUCCESS", 0) == ended
        await asyncio.sleep(0.05)
        assert (await array_of(api))["counts"].get("RUNNING") == running
        await end_all(api)
    await until(api, lambda array: array["counts"] == {"SUCCESS": 5})


async def test_it_is_cancelled_as_one(api: Api) -> None:
    await submit(api, "0-19")  # eight processors
    await until(api, lambda array: array["counts"].get("RUNNING", 0) == 8)
    reply = await api.user.request("DELETE", "/arrays/sweep")
    assert reply.status == 200
    assert reply.json()["counts"]["CANCELLED"] == 12
    array = await until(api, lambda array: set(array["counts"]) <= {"CANCELLED", "FAILURE", "TERMINATED"})
    assert (array["size"], array["status"]) == (20, "FAILURE")
    again = await api.user.request("DELETE", "/arrays/sweep")
    assert (again.status, again.json()["counts"]) == (200, array["counts"])


async def test_what_failed_is_enqueued_again(api: Api) -> None:
    array = await submit(api, "1-4")
    await until(api, lambda array: array["counts"] == {"RUNNING": 4})
    await end_all(api, lambda index: index % 2)
    await until(api, lambda array: array["counts"] == {"FAILURE": 2, "SUCCESS": 2})
    reply = await api.user.request("POST", "/arrays/sweep/retry")
    assert (reply.status, reply.json()["retried"]) == (200, 2)
    again = await until(api, lambda array: array["counts"] == {"RUNNING": 2, "SUCCESS": 2})
    assert (again["id"], again["size"]) == (array["id"], 4)
    assert sorted(held.spec.environ["BACKENDAI_ARRAY_INDEX"] for held in api.agent.kernels.values()) == ["1", "3"]
    await end_all(api)
    await until(api, lambda array: array["counts"] == {"SUCCESS": 4})
    refused = await api.user.request("POST", "/arrays/sweep/retry")
    assert (refused.status, refused.json()["data"]) == (409, {"counts": {"SUCCESS": 4}})


async def _fail_as_other(api: Api, **session: Any) -> str:
    """An array of another user that has failed; returns its path."""
    array = await submit(api, "1", api.other, **session)
    await until(api, partial(has_running, 1), array["id"], api.other)
    await end_all(api, lambda _: 1)
    await until(api, lambda array: array["counts"] == {"FAILURE": 1}, array["id"], api.other)
    return f"/arrays/{array['id']}"


async def test_a_retry_mounts_no_folder_that_is_not_shared_any_more(api: Api) -> None:
    await make(api, "data")
    await call(api, "POST", "/data/invite", {"perm": "rw", "emails": ["other@local"]})
    [invitation] = (await call(api, "GET", "/invitations/list", by=api.other)).json()["invitations"]
    await call(api, "POST", "/invitations/accept", {"inv_id": invitation["id"]}, by=api.other)
    path = await _fail_as_other(api, config={"mounts": ["data"]})
    other = (await api.gql("{ user { uuid } }", api.other))["data"]["user"]["uuid"]
    share = {"vfolder": invitation["vfolder_id"], "user": other}
    for permission, code in (("ro", "read-only"), (None, "vfolder-not-found")):
        assert (await call(api, "POST", "/_/shared", {**share, "perm": permission})).status < 300
        refused = await api.other.request("POST", f"{path}/retry")
        assert (refused.status, refused.json()["data"]) == (400, {"config.mounts": f"data: {code}"})
    assert (await api.other.request("GET", path)).json()["counts"] == {"FAILURE": 1}


async def test_a_retry_begins_nothing_in_a_project_that_its_owner_has_left(api: Api) -> None:
    path = await _fail_as_other(api)
    group = (await api.gql("{ groups { id } }", api.other))["data"]["groups"][0]["id"]
    query = """mutation($g: UUID!) {
      modify_group(gid: $g, props: {user_update_mode: "remove", user_emails: ["other@local"]}) { ok msg } }"""
    assert (await api.gql(query, api.admin, g=group))["data"]["modify_group"]["ok"]
    assert (await api.other.request("POST", f"{path}/retry")).status == 404


async def test_retried_elements_ask_for_the_largest_amount_of_their_alternatives_again(api: Api) -> None:
    alternatives = ['amount("mock.device", 1)', 'amount("mock.device", 2)']
    await submit(api, "1", config={"device_requests": alternatives})
    await until(api, lambda array: array["counts"] == {"RUNNING": 1})
    assert api.agent.created[-1].slots["mock.device"] == "1"
    await end_all(api, lambda _: 1)
    await until(api, lambda array: array["counts"] == {"FAILURE": 1})
    blocker = {"image": "python", "name": "blocker", "config": {"resources": {"mock.device": 4}}}
    assert (await api.user.request("POST", "/session", json=blocker)).status == 201
    assert (await api.user.request("POST", "/arrays/sweep/retry")).status == 200
    (waiting,) = await api.cluster.manager.stores.sessions.by_status([SessionStatus.PENDING])
    assert (waiting.array_index, waiting.device_requests) == (1, tuple(alternatives))
    assert waiting.main.requested_slots["mock.device"] == waiting.requested_slots["mock.device"] == 2


async def test_a_repeated_call_makes_one_array(api: Api) -> None:
    headers = {"X-BackendAI-Client-Token": "once"}
    replies = [await api.user.request("POST", "/arrays", json=body("1-3"), headers=headers) for _ in range(2)]
    assert [reply.json()["id"] for reply in replies] == [replies[0].json()["id"]] * 2
    assert (await api.user.request("GET", "/arrays")).json()["totalCount"] == 1
    clash = await api.user.request("POST", "/arrays", json=body("3-4"))
    assert clash.status == 409
    assert (await api.user.request("GET", "/arrays")).json()["items"][0]["size"] == 3


@pytest.mark.parametrize(
    ("indices", "status", "field"),
    [
        ("1-1000000", 406, "10000"),
        ("1-10000000000000", 400, "indices"),
        ("5-1", 400, "upwards"),
        ("a", 400, "1-1000"),
        ("1,1", 400, "twice"),
        ("1-9%0", 400, "%"),
        ("1-9:0", 400, "upwards"),
    ],
)
async def test_a_malformed_array_is_refused(api: Api, indices: str, status: int, field: str) -> None:
    reply = await api.user.request("POST", "/arrays", json=body(indices))
    assert reply.status == status, reply.body
    assert field in reply.body.decode()
    assert (await api.user.request("GET", "/arrays")).json()["totalCount"] == 0


async def test_limits_hold_for_each_element(api: Api) -> None:
    policy = 'mutation { modify_keypair_resource_policy(name: "default", props: {max_concurrent_sessions: 5}) { ok } }'
    assert (await api.gql(policy, api.admin))["data"]["modify_keypair_resource_policy"]["ok"]
    refused = await api.user.request("POST", "/arrays", json=body("1-6"))
    assert "5 sessions at a time" in refused.body.decode()
    assert (await api.user.request("GET", "/arrays")).json()["items"] == []
    assert (await submit(api, "1-5"))["size"] == 5


async def test_arrays_of_others_are_not_there(api: Api) -> None:
    array = await submit(api, "1-2")

    async def tries(client: RawClient) -> list[RawReply]:
        path = f"/arrays/{array['id']}"
        return [
            await client.request("GET", path),
            await client.request("POST", f"{path}/retry"),
            await client.request("DELETE", path),
        ]

    assert [reply.status for reply in await tries(api.other)] == [404, 404, 404]
    assert (await api.other.request("GET", "/arrays")).json()["items"] == []
    assert [reply.status for reply in await tries(api.admin)] == [200, 409, 200]


@pytest.mark.parametrize("request_", [{"type": "interactive"}, {"name": "x" * 64}, {"startsAt": "1h"}])
async def test_elements_are_ordinary_batch_sessions(api: Api, request_: dict[str, str]) -> None:
    assert (await api.user.request("POST", "/arrays", json=body("1-2%1", **request_))).status == 400
