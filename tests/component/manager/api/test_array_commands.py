"""`backend.ai submit` and `backend.ai array` against the real manager."""

from __future__ import annotations

from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.component.manager.api.test_arrays_api import end_all, until


async def test_an_array_from_its_submission_to_its_end(api: Api, shell: Shell) -> None:
    array = await shell.own("submit", "-t", "sweep", "--array", "1-3", "python", "true", by=api.user)
    assert (array["name"], array["size"]) == ("sweep", 3)
    await shell.own("start", "-t", "single", "-r", "cpu=1", "python", by=api.user)
    listed = await shell.own("ps", by=api.user)
    assert [item["name"] for item in listed["items"]] == ["single"]
    assert [item["name"] for item in listed["arrays"]] == ["sweep"]
    elements = await shell.own("ps", "--array", "sweep", by=api.user)
    assert [item["name"] for item in elements["items"]] == ["sweep-1", "sweep-2", "sweep-3"]
    assert [item["name"] for item in await shell.own("array", "list", by=api.user)] == ["sweep"]
    await until(api, lambda array: array["counts"] == {"RUNNING": 3})
    await shell.own("array", "wait", "sweep", "--max-wait", "0.1", by=api.user, fails="has not ended within")
    await end_all(api, lambda index: int(index == 2))
    await until(api, lambda array: array["status"] == "FAILURE")
    assert (await shell.own("array", "info", "sweep", by=api.user))["counts"] == {"FAILURE": 1, "SUCCESS": 2}
    await shell.own("array", "wait", "sweep", by=api.user, fails="FAILURE")
    assert (await shell.own("array", "retry", "sweep", by=api.user))["retried"] == 1
    await until(api, lambda array: array["counts"].get("RUNNING") == 1)
    await end_all(api)
    await until(api, lambda array: array["status"] == "SUCCESS")
    assert (await shell.own("array", "wait", "sweep", by=api.user))["status"] == "SUCCESS"
    assert await shell.own("array", "list", by=api.user) == []
    assert len(await shell.own("array", "list", "--all", by=api.user)) == 1


async def test_rm_and_cancel_take_the_name_of_an_array(api: Api, shell: Shell) -> None:
    for name, command in (("first", ("rm",)), ("second", ("array", "cancel"))):
        await shell.own("submit", "-t", name, "--array", "1-2%1", "python", "true", by=api.user)
        await shell.own(*command, name, by=api.user)
        array = await until(api, lambda array: array["status"] == "FAILURE", name)
        assert array["size"] == 2
    await shell.own("rm", "nothing", by=api.user, fails="no such session")


async def test_one_batch_session(api: Api, shell: Shell) -> None:
    session = await shell.own("submit", "-t", "single", "python", "true", by=api.user)
    assert (session["name"], session["status"]) == ("single", "PENDING")
    await shell.own("submit", "--array", "1-1000000", "python", "true", by=api.user, fails="at most 10000 elements")
