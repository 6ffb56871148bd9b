"""Reports of what was used, over the wire: their shapes, and who may have them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from ai.backend.common.states import SessionStatus
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import new_client, new_user
from tests.component.manager.api.test_resource_groups_api import ask
from tests.support.signed_http import RawClient

TODAY = "%Y%m%d"
MONTH = "/resource/usage/month"
PERIOD = "/resource/usage/period"


async def get(client: RawClient, path: str, status: int = 200, **body: Any) -> Any:
    """As the published client does: parameters in the body of a GET."""
    reply = await client.request("GET", path, json=body or None)
    assert reply.status == status, reply.body
    return reply.json()


async def ran(api: Api) -> str:
    """A session that has run and one that runs; the id of their group."""
    told = await api.create(name="first", cluster_size=2, config={"resources": {"cpu": 1, "mem": "64m"}})
    assert (await api.user.request("DELETE", "/session/first?forced=true")).status == 200
    async with asyncio.timeout(30):
        while (session := await api.cluster.manager.stores.sessions.get(told["sessionId"])) is not None:
            if session.status is SessionStatus.TERMINATED:
                break
            await asyncio.sleep(0.02)
    assert session is not None
    await api.create(name="second", config={"resources": {"cpu": 1, "mem": "64m"}})
    return str(session.group_id)


async def test_what_a_group_used(api: Api) -> None:
    now = datetime.now(UTC)
    empty: dict[str, Any] = {"start_date": "20200101", "end_date": "20200103"}
    group = await ran(api)
    [told] = await get(api.admin, MONTH, month=now.strftime("%Y%m"), group_ids=[group])
    assert (told["g_id"], told["g_name"], told["domain_name"]) == (group, "default", "default")
    assert (told["c_count"], told["g_smp"], told["g_mem_allocated"]) == (3, 3, 3 * 64 * 2**20)
    assert {c["name"] for c in told["c_infos"]} == {"first", "second"}
    first, second = told["c_infos"][0], told["c_infos"][-1]
    assert (first["used_days"], first["image_name"], first["status"]) == (1, "host/python", "TERMINATED")
    assert first["access_key"] == api.user.access_key
    assert (second["used_days"], second["terminated_at"], second["status"]) == (None, "", "RUNNING")
    for one in told["c_infos"]:
        assert "~" in one["created_at"] + " ~ " + one["terminated_at"], "as the published client says it"
    assert await get(api.admin, MONTH, month="202001") == []
    day = now.strftime(TODAY)
    found = await get(api.admin, PERIOD, group_id=group, start_date=day, end_date=day)
    assert found["c_count"] == 3
    queried = await api.admin.request("GET", f"{PERIOD}?group_id={group}&start_date={day}&end_date={day}")
    assert queried.json()["c_count"] == 3, "as the Web UI does"
    assert await get(api.admin, PERIOD, group_id=group, **empty) == {}


SOME = "00000000-0000-0000-0000-000000000001"
BAD: list[tuple[str, dict[str, Any], str]] = [
    (MONTH, {}, "month"),
    (MONTH, {"month": "2026-01"}, "month"),
    (MONTH, {"month": "202613"}, "month"),
    (MONTH, {"month": "999912"}, "month"),
    (MONTH, {"month": "\N{ARABIC-INDIC DIGIT TWO}02601"}, "month"),
    (MONTH, {"month": "202601", "group_ids": ["x"]}, "group_ids"),
    (PERIOD, {"group_id": SOME, "start_date": "20260101"}, "end_date"),
    (PERIOD, {"group_id": SOME, "start_date": "20260102", "end_date": "20260101"}, "end_date"),
    (PERIOD, {"group_id": SOME, "start_date": "20250101", "end_date": "20260101"}, "end_date"),
    (PERIOD, {"group_id": SOME, "start_date": "20260230", "end_date": "20260301"}, "start_date"),
    (PERIOD, {"group_id": SOME, "start_date": "99991231", "end_date": "99991231"}, "start_date"),
]


async def test_a_malformed_period_is_named(api: Api) -> None:
    for path, body, field in BAD:
        told = await get(api.admin, path, 400, **body)
        assert any(name.startswith(field) for name in told["data"]), (body, told)


async def test_who_may_have_a_report(api: Api) -> None:
    group, month = await ran(api), datetime.now(UTC).strftime("%Y%m")
    await get(api.user, MONTH, 403, month=month)
    await get(api.user, "/resource/stats/admin/month", 403)
    await get(api.other, PERIOD, 403, group_id=group, start_date="20260101", end_date="20260102")
    await ask(api, 'mutation { create_domain(name: "far", props: {}) { ok msg } }')
    await new_user(api, "far@example.com", domain_name="far", role="admin")
    await new_user(api, "near@example.com", role="admin")
    far, near = await new_client(api, "far@example.com"), await new_client(api, "near@example.com")
    assert await get(far, MONTH, month=month) == []
    await get(far, MONTH, 404, month=month, group_ids=[group])
    assert [g["g_id"] for g in await get(near, MONTH, month=month)] == [group]
    assert (await get(far, "/resource/stats/admin/month"))[-1]["num_sessions"]["value"] == 0
    assert (await get(near, "/resource/stats/admin/month"))[-1]["num_sessions"]["value"] == 2


async def test_statistics_of_a_month(api: Api) -> None:
    await ran(api)
    mine = await get(api.user, "/resource/stats/user/month")
    assert len(mine) == 2_880
    assert mine[-1]["num_sessions"] == {"value": 2, "unit_hint": "count"}
    assert mine[-1]["cpu_allocated"] == {"value": 3, "unit_hint": "count"}
    assert mine[-1]["mem_allocated"] == {"value": 3 * 64 * 2**20, "unit_hint": "bytes"}
    assert mine[1]["date"] - mine[0]["date"] == timedelta(minutes=15).total_seconds()
    assert (await get(api.other, "/resource/stats/user/month"))[-1]["num_sessions"]["value"] == 0
    assert await get(api.admin, "/resource/stats/admin/month")


async def test_counting_again_finds_no_drift(api: Api) -> None:
    await ran(api)
    reply = await api.admin.request("POST", "/resource/recalculate-usage")
    assert (reply.status, reply.json()) == (200, {"drift": {}, "orphans": []})
    assert (await api.user.request("POST", "/resource/recalculate-usage")).status == 403
