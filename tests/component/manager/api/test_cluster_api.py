from __future__ import annotations

from tests.component.manager.api.conftest import Api


async def test_what_the_cluster_offers(api: Api) -> None:
    slots = (await api.user.request("GET", "/config/resource-slots")).json()
    assert slots == {"cpu": "count", "mem": "bytes", "mock.device": "count"}
    assert isinstance((await api.user.request("GET", "/config/resource-slots/details")).json(), dict)
    assert isinstance((await api.user.request("GET", "/config/vfolder-types")).json(), list)
    assert isinstance((await api.user.request("GET", "/config/docker-registries")).json(), dict)
    assert isinstance((await api.user.request("GET", "/resource/presets")).json()["presets"], list)
    groups = (await api.user.request("GET", "/scaling-groups?group=default")).json()
    assert groups == {"scaling_groups": [{"name": "default"}]}


async def test_what_is_left(api: Api) -> None:
    await api.create(name="holder", config={"resources": {"cpu": 2, "mem": "1g"}})
    told = (await api.user.request("POST", "/resource/check-presets")).json()
    assert told["keypair_using"]["cpu"] == "2"
    assert told["keypair_limits"]["cpu"] == "Infinity"
    assert told["scaling_group_remaining"]["cpu"] == "6"
    assert told["scaling_groups"]["default"]["remaining"]["cpu"] == "6"
    by_name = (await api.user.request("POST", "/resource/check-presets", json={"scaling_group": "default"})).json()
    assert by_name["scaling_groups"] == told["scaling_groups"]
    bad = await api.user.request("POST", "/resource/check-presets", json={"scaling_group": 1, "x": 2})
    assert set(bad.json()["data"]) == {"scaling_group", "x"}


async def test_the_manager(api: Api) -> None:
    await api.create(name="holder")
    status = (await api.user.request("GET", "/manager/status", json={"status": "running"})).json()
    assert (status["status"], status["active_sessions"]) == ("running", 1)
    assert (await api.user.request("GET", "/manager/announcement")).json() == {"enabled": False, "message": ""}
    assert (await api.admin.request("PUT", "/manager/status", json={"status": "frozen"})).status == 501
    role = (await api.admin.request("GET", "/auth/role?group=default")).json()
    assert role == {"global_role": "superadmin", "domain_role": "admin", "group_role": "admin"}


async def test_probes_and_documents(api: Api) -> None:
    anonymous = api.user.__class__(port=api.port)
    version = (await anonymous.request("GET", "/")).json()
    assert version["version"] == "v7.20230615"
    assert version["manager"]
    document = (await anonymous.request("GET", "/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert "CreateSessionBody" in document["components"]["schemas"]
    await api.create(name="holder")
    metrics = (await anonymous.request("GET", "/metrics")).body.decode()
    assert "backendai_manager_sessions_live 1.0" in metrics
    assert 'route="POST /session",status="201"' in metrics
    assert (await anonymous.request("GET", "/readyz")).status == 200
    assert (await anonymous.request("GET", "/resource/presets")).status == 401
