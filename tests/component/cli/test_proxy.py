"""`backend.ai proxy` against an API that verifies signatures."""

import asyncio
import signal

import aiohttp

from tests.component.cli.conftest import Shell
from tests.support.fake_api import FakeApi


async def test_requests_are_signed_and_other_sites_are_refused(shell: Shell, api: FakeApi) -> None:
    await shell("start", "-t", "mine", "python")
    process = await shell.start("proxy", "--bind", "127.0.0.1", "--port", "0")
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()[0]
    async with aiohttp.ClientSession() as http:

        async def get(path: str, **headers: str) -> tuple[int, dict[str, str]]:
            async with http.get(url + path, headers=headers) as reply:
                return reply.status, await reply.json()

        status, found = await get("/session/mine")
        assert (status, found["name"]) == (200, "mine")
        status, slots = await get("/config/resource-slots?x=%2F", Origin=url)
        assert (status, sorted(slots)) == (200, ["cpu", "mem", "mock.device"])
        async with http.post(f"{url}/session/mine/rename", params={"name": "yours"}) as renamed:
            assert renamed.status == 204
        assert api.find("yours").name == "yours"
        status, refused = await get("/session/nobody")
        assert (status, refused["type"].rpartition("/")[2]) == (404, "session-not-found")
        count = len(api.requests)
        assert (await get("/session/yours", Origin="https://evil.example"))[0] == 403
        assert (await get("/session/yours", Origin="null"))[0] == 403
        assert (await get("/session/yours", Host="evil.example"))[0] == 403
        assert (await get("/stream/session/yours/pty", Upgrade="websocket"))[0] == 501
        assert len(api.requests) == count
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130


async def test_a_dead_endpoint_is_a_bad_gateway(shell: Shell) -> None:
    process = await shell.start("proxy", "-p", "0", BACKEND_ENDPOINT="http://127.0.0.1:9")
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()[0]
    async with aiohttp.ClientSession() as http, http.get(f"{url}/session/x") as reply:
        assert reply.status == 502
    process.kill()
    await process.communicate()
