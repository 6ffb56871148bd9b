"""Runs and files over REST, WebSocket and events (client wire contract 2.1.4, 2.2, 2.4)."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient, read_chunk, read_head


async def _run(api: Api, **body: Any) -> dict[str, Any]:
    reply = await api.user.request("POST", "/session/runs", json=body)
    assert reply.status == 200, reply.body
    told: dict[str, Any] = reply.json()["result"]
    return told


async def test_polling(api: Api) -> None:
    await api.create(name="runs")
    first = await _run(api, mode="query", code="out:a ask out:b", runId=None)
    assert (first["status"], first["console"]) == ("continued", [["stdout", "a"]])
    run_id = first["runId"]
    second = await _run(api, mode="continued", code="", runId=run_id, options={})
    assert (second["status"], second["options"]) == ("waiting-input", {"is_password": False})
    last = await _run(api, mode="input", code="Lee", runId=run_id)
    assert (last["status"], last["exitCode"]) == ("finished", 0)
    assert last["console"] == [["stdout", "got Lee"], ["stdout", "b"]]
    assert last["files"] == []
    info = (await api.user.request("GET", "/session/runs")).json()
    assert info["numQueriesExecuted"] == 1


async def test_batch(api: Api) -> None:
    await api.create(name="runs")
    options = {"clean": "*", "build": "make", "buildLog": True, "exec": "./main"}
    result = await _run(api, mode="batch", code="", runId="r1", options=options)
    assert result["status"] == "clean-finished"
    assert api.agent.executed[0].options == options
    assert (await _run(api, mode="continue", code="", runId="r1"))["status"] == "build-finished"
    assert (await _run(api, mode="continue", code="", runId="r1"))["status"] == "finished"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "mode"),
        ({"mode": "fly"}, "mode"),
        ({"mode": "continue"}, "runId"),
        ({"mode": "input", "code": "x"}, "runId"),
        ({"mode": "batch", "code": "x"}, "code"),
        ({"mode": "query", "code": 5}, "code"),
        ({"mode": "query", "runId": "x" * 200}, "runId"),
        ({"mode": "query", "options": {"fast": True}}, "options.fast"),
        ({"mode": "batch", "options": {"buildLog": "yes"}}, "options.buildLog"),
        ({"mode": "query", "more": 1}, "more"),
    ],
)
async def test_bad_runs(api: Api, body: dict[str, Any], field: str) -> None:
    await api.create(name="runs")
    reply = await api.user.request("POST", "/session/runs", json=body)
    assert (reply.status, list(reply.json()["data"])) == (400, [field])


async def test_oversized_code(api: Api) -> None:
    await api.create(name="runs")
    assert (await api.user.request("POST", "/session/runs", json={"mode": "query", "code": "x" * 2**22})).status == 413


async def test_interrupt_complete_logs(api: Api) -> None:
    told = await api.create(name="runs")
    assert (await api.user.request("POST", "/session/runs/interrupt")).status == 204
    assert api.agent.interrupted == 1
    body = {"code": "pri", "options": {"post": "", "line": "pri", "row": 0, "col": 3}}
    assert (await api.user.request("POST", "/session/runs/complete", json=body)).json() == {
        "result": ["print", "printf"]
    }
    assert api.agent.completions[0].options == body["options"]
    assert (await api.user.request("GET", "/session/runs/logs")).json() == {"result": {"logs": "hello\n"}}
    raw = await api.user.request("GET", f"/session/_/logs?taskId={told['sessionId']}")
    assert raw.body == b"hello\n"
    assert (await api.user.request("GET", "/session/_/logs?taskId=x")).status == 400


async def test_processes(api: Api) -> None:
    await api.create(name="runs")
    assert (await api.user.request("GET", "/session/runs/processes")).json() == {
        "result": [
            {
                "kernel": "main1",
                "pid": 7,
                "command": "python main.py",
                "metrics": {"mem": {"current": "4096", "capacity": None}},
            }
        ]
    }
    assert (await api.user.request("GET", "/session/nobody/processes")).status == 404


async def test_a_session_that_does_not_run(api: Api) -> None:
    api.agent.stall = True
    await api.create(name="runs", enqueueOnly=True)
    reply = await api.user.request("POST", "/session/runs", json={"mode": "query", "code": "x"})
    assert (reply.status, reply.problem) == (409, "conflict")


# ---- files ---------------------------------------------------------------------------------------------------------


def _form(*files: tuple[str, bytes]) -> bytes:
    parts = b""
    for name, data in files:
        head = f'--BOUND\r\nContent-Disposition: form-data; name="src"; filename="{name}"\r\n'
        parts += head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n"
    return parts + b"--BOUND--\r\n"


async def test_a_plain_absolute_file_name_keeps_its_slash(api: Api) -> None:
    await api.create(name="runs")
    reply = await _upload(api, ("/home/work/abs.txt", b"1"))
    assert reply.status == 204
    assert [f.path for f in api.agent.uploads[0].files] == ["abs.txt"]
    refused = await _upload(api, ("/etc/x", b"1"))
    assert (refused.status, refused.problem) == (400, "invalid-api-params")
    assert len(api.agent.uploads) == 1


async def _upload(api: Api, *files: tuple[str, bytes]) -> Any:
    return await api.user.request(
        "POST", "/session/runs/upload", body=_form(*files), content_type="multipart/form-data; boundary=BOUND"
    )


async def test_uploads(api: Api) -> None:
    await api.create(name="runs")
    reply = await _upload(api, ("d%2Fx.py", b"1"), ("%2Fhome%2Fwork%2Fy.py", b"x" * 2**20), (".%2Fz", b""))
    assert reply.status == 204, reply.body
    assert {f.path: len(f.data) for f in api.agent.uploads[0].files} == {"d/x.py": 1, "y.py": 2**20, "z": 0}


@pytest.mark.parametrize(
    "files",
    [
        [("..%2Fx", b"")],
        [("a%2F..%2F..%2Fx", b"")],
        [("%2Fetc%2Fpasswd", b"")],
        [("%2Fhome%2Fworker%2Fx", b"")],
        [("%2Fhome%2Fwork%2F..%2Fx", b"")],
        [("%2Fhome%2Fwork", b"")],
        [("dir%2F", b"")],
        [("big", b"x" * (2**20 + 1))],
        [(f"f{i}", b"") for i in range(21)],
    ],
)
async def test_bad_uploads(api: Api, files: list[tuple[str, bytes]]) -> None:
    await api.create(name="runs")
    reply = await _upload(api, *files)
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert reply.json()["data"]
    assert api.agent.uploads == []


@pytest.mark.parametrize("how", ["body", "query", "report"])
async def test_downloads(api: Api, how: str) -> None:
    await api.create(name="runs")
    if how == "query":
        reply = await api.user.request("GET", "/session/runs/download?files=d/a.txt&files=b")
    else:
        method = "GET" if how == "body" else "REPORT"
        reply = await api.user.request(method, "/session/runs/download", json={"files": ["d/a.txt", "b"]})
    assert reply.headers["content-type"].startswith("multipart/")
    assert reply.body.count(b"tar of d/a.txt") == 1
    assert api.agent.downloads[0].paths == ["d/a.txt", "b"]


@pytest.mark.parametrize("files", [[], ["a"] * 6, ["../x"], ["/etc/passwd"], ["/home/work"], [1], "a"])
async def test_bad_downloads(api: Api, files: Any) -> None:
    await api.create(name="runs")
    reply = await api.user.request("GET", "/session/runs/download", json={"files": files})
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert "files" in json.dumps(reply.json()["data"])


async def test_listings(api: Api) -> None:
    await api.create(name="runs")
    reply = await api.user.request("GET", "/session/runs/files", json={"path": "/home/work/d"})
    told = reply.json()
    assert json.loads(told["files"])[0]["filename"] == "a.txt"
    assert (told["folder_path"], told["errors"]) == ("/home/work/d", "")
    for path in ("..", "/etc", "a/../.."):
        assert (await api.user.request("GET", "/session/runs/files", json={"path": path})).status == 400


# ---- streams -------------------------------------------------------------------------------------------------------


async def _frames(socket: aiohttp.ClientWebSocketResponse, *, until: str = "finished") -> list[dict[str, Any]]:
    frames = []
    while True:
        frame = json.loads(await socket.receive_str(timeout=30))
        frames.append(frame)
        if frame["status"] == until:
            return frames


@pytest.mark.parametrize("prefix", ["/stream/session", "/stream/kernel", "/v5/stream/kernel"])
async def test_streamed_query(api: Api, prefix: str) -> None:
    told = await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, f"{prefix}/{told['sessionId']}/execute")
        await socket.send_str(json.dumps({"code": "out:a ask sleep out:b", "mode": "query", "options": {}}))
        frames = await _frames(socket, until="waiting-input")
        assert frames[-1]["options"] == {"is_password": False}
        await socket.send_str("Lee")
        frames += await _frames(socket)
        assert (await socket.receive(timeout=30)).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
    console = [item for frame in frames for item in frame["console"]]
    assert console == [["stdout", "a"], ["stdout", "got Lee"], ["stdout", "b"]]
    assert frames[-1]["exitCode"] == 0
    assert api.agent.interrupted == 0


async def test_a_run_that_goes_on_without_the_input(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/execute")
        await socket.send_str(json.dumps({"code": "ask", "mode": "query", "options": {}}))
        await _frames(socket, until="waiting-input")
        api.agent.input_times_out = True
        frames = await _frames(socket)
    assert [frame["status"] for frame in frames if frame["status"] != "continued"] == ["finished"]


async def test_streamed_batch(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/execute")
        options = {"clean": "*", "build": "*", "buildLog": True, "exec": "*"}
        await socket.send_str(json.dumps({"code": "", "mode": "batch", "options": options}))
        frames = await _frames(socket)
    assert [f["status"] for f in frames] == ["clean-finished", "build-finished", "finished"]


async def test_much_output_is_split_below_the_cap_of_a_frame(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/execute")
        await socket.send_str(json.dumps({"code": "big:1500000", "mode": "query", "options": {}}))
        frames = await _frames(socket)
    assert sum(len(item[1]) for f in frames for item in f["console"]) == 1_500_000
    assert [f["status"] for f in frames] == ["continued"] * 5 + ["finished"]


@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_goes_interrupts_its_run(api: Api, politely: bool) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/execute")
        await socket.send_str(json.dumps({"code": "hang", "mode": "query", "options": {}}))
        await asyncio.wait_for(api.agent.began.wait(), 30)
        if politely:
            await socket.close()
        else:
            socket._response.connection.transport.abort()  # type: ignore[union-attr]  # it is open
    await asyncio.wait_for(api.agent.was_interrupted.wait(), 30)


@pytest.mark.parametrize("first", ['{"mode": "input", "code": ""}', "no json", '{"mode": "query", "x": 1}', "[]"])
async def test_a_first_frame_that_is_wrong(api: Api, first: str) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/execute")
        await socket.send_str(first)
        frame = (await _frames(socket))[0]
    assert frame["error"]["status"] == 400
    assert frame["console"][0][0] == "stderr"


async def test_a_run_that_fails(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/execute")
        await socket.send_str(json.dumps({"code": "boom", "mode": "query"}))
        frame = (await _frames(socket))[0]
    assert (frame["status"], frame["exitCode"]) == ("finished", -1)
    assert "the run is gone" in frame["console"][0][1]


async def test_streams_of_others(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        for path in ("execute", "pty"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await api.socket(http, f"/stream/session/runs/{path}", api.other)
            assert caught.value.status == 404


async def test_a_terminal(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, "/stream/session/runs/pty?rows=33&cols=111")
        await socket.send_json({"type": "resize", "rows": 30, "cols": 100})
        await socket.send_json({"type": "ping"})
        await socket.send_json({"type": "stdin", "chars": base64.b64encode(b"ls\n").decode()})
        told = json.loads(await socket.receive_str(timeout=30))
        assert told == {"type": "out", "data": base64.b64encode(b"ls\n").decode()}
        await socket.send_json({"type": "stdin", "chars": "not base64!"})
        assert json.loads(await socket.receive_str(timeout=30))["type"] == "error"
        await socket.send_str("nonsense")
        assert json.loads(await socket.receive_str(timeout=30))["type"] == "error"
        await socket.send_json({"type": "stdin", "chars": base64.b64encode(b"exit").decode()})
        assert (await socket.receive(timeout=30)).type is WSMsgType.CLOSE
    assert [(request.rows, request.cols) for request in api.agent.pty_requests] == [(33, 111)]
    pty = api.agent.ptys[0]
    assert [(f.kind, f.rows, f.cols) for f in pty.heard[:2]] == [("resize", 30, 100), ("ping", 24, 80)]
    await asyncio.wait_for(pty.closed.wait(), 30)


async def test_apps(api: Api) -> None:
    await api.create(name="runs")
    apps = (await api.user.request("GET", "/stream/session/runs/apps")).json()
    assert [a["name"] for a in apps] == ["sshd"]


# ---- events --------------------------------------------------------------------------------------------------------


NOW = {"Last-Event-ID": "now"}


class Events:
    """An event stream read in the background."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.reader = reader
        self.text = b""

    async def until(self, mark: bytes) -> list[dict[str, str]]:
        while mark not in self.text:
            chunk = await read_chunk(self.reader)
            if not chunk:
                raise AssertionError(f"the stream ended without {mark!r}: {self.text!r}")
            self.text += chunk
        return self.events

    @property
    def events(self) -> list[dict[str, str]]:
        blocks = [block for block in self.text.decode().split("\n\n") if block and not block.startswith(":")]
        return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


async def listen(client: RawClient, target: str, **headers: str) -> tuple[Events, asyncio.StreamWriter]:
    reader, writer = await client.send(client.head("GET", target, content_type=None, headers=headers))
    status, told = await read_head(reader)
    assert status == 200, await reader.read(2000)
    assert told["content-type"].startswith("text/event-stream")
    return Events(reader), writer


async def test_the_life_of_a_session(api: Api) -> None:
    everything, writer = await listen(api.user, "/events/session?sessionName=*&scope=*")
    foreign, other_writer = await listen(api.other, "/events/session?sessionId=*")
    told = await api.create(name="watched")
    await everything.until(b"session_started")
    one, one_writer = await listen(api.user, f"/events/session?sessionId={told['sessionId']}&scope=session")
    await api.user.request("DELETE", "/session/watched")
    events = await one.until(b"server_close")
    names = [e["event"] for e in events]
    assert names[-2:] == ["session_terminated", "server_close"]
    assert not any(n.startswith("kernel_") for n in names)
    data = json.loads(events[-2]["data"])
    assert data["sessionId"]
    assert "reason" in data
    assert all(json.loads(e["data"]) is not None for e in events)
    ids = [int(e["id"]) for e in everything.events]
    assert ids == sorted(ids)
    assert foreign.events == []
    for w in (writer, other_writer, one_writer):
        w.close()


async def test_the_end_of_a_session_tells_its_result(api: Api) -> None:
    told = await api.create(name="watched")
    await api.user.request("DELETE", "/session/watched")
    target = f"/events/session?sessionId={told['sessionId']}&lastEventId=0"
    events, writer = await listen(api.user, target)
    ended = next(e for e in await events.until(b"server_close") if e["event"] == "session_terminated")
    assert json.loads(ended["data"])["result"] == "UNDEFINED"
    writer.close()


async def test_agents_are_named_to_those_alone_who_see_agents(api: Api) -> None:
    told = await api.create(name="watched")
    target = f"/events/session?sessionId={told['sessionId']}&lastEventId=0&scope=*"
    agents = {}
    for name, client in (("user", api.user), ("admin", api.admin)):
        events, writer = await listen(client, target)
        kernel_events = [e for e in await events.until(b"kernel_started") if e["event"] == "kernel_started"]
        agents[name] = json.loads(kernel_events[0]["data"])["agentId"]
        writer.close()
    assert agents == {"user": None, "admin": api.agent.agent_id}
    body = {"image": "python", "config": {"resources": {"cpu": "9999"}}}
    refused = await api.user.request("POST", "/session", json=body)
    assert refused.status == 406
    assert api.agent.agent_id not in refused.body.decode()


@pytest.mark.parametrize("parameter", ["ownerAccessKey", "owner_access_key"])
async def test_events_of_another_keypair_are_refused(api: Api, parameter: str) -> None:
    for query in ("", "&sessionId=*", "&sessionId=runs"):
        target = f"/events/session?{parameter}={api.admin.access_key}{query}"
        reply = await api.user.request("GET", target, content_type=None)
        assert (reply.status, reply.problem) == (403, "forbidden")
    target = f"/events/session?{parameter}={api.user.access_key}"
    _, writer = await listen(api.admin, target)
    writer.close()


async def test_resuming_after_the_last_event(api: Api) -> None:
    everything, writer = await listen(api.user, "/events/session")
    told = await api.create(name="watched")
    seen = await everything.until(b"session_started")
    writer.close()
    after = next(e["id"] for e in seen if e["event"] == "session_scheduled")
    target = f"/v6/stream/session/_/events?sessionId={told['sessionId']}"
    again, writer = await listen(api.user, target, **{"Last-Event-ID": after})
    replayed = await again.until(b"session_started")
    assert [e["id"] for e in replayed] == [e["id"] for e in seen if int(e["id"]) > int(after)]
    writer.close()


@pytest.mark.parametrize("name", ["header", "query"])
async def test_a_stream_that_breaks_before_its_first_event_loses_none(api: Api, name: str) -> None:
    await api.create(name="earlier")
    target, headers = ("/events/session?lastEventId=now", {}) if name == "query" else ("/events/session", NOW)
    stream, writer = await listen(api.user, target, **headers)
    (position,) = await stream.until(b"stream_position")
    assert (position["event"], position["data"]) == ("stream_position", "{}")
    writer.close()
    told = await api.create(name="watched")
    # A browser repeats the address of its stream, and has the id in the header.
    again, writer = await listen(api.user, target, **{"Last-Event-ID": position["id"]})
    events = await again.until(b"session_started")
    assert events[0]["event"] == "session_enqueued"
    assert {json.loads(event["data"])["sessionId"] for event in events} == {told["sessionId"]}
    writer.close()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/events/session?sessionId=nothing-here", 404),
        ("/events/session?sessionId=a&sessionName=b", 400),
        ("/events/session?scope=all", 400),
        ("/events/session?group=nobodys", 404),
        ("/events/session?lastEventId=x", 400),
        ("/events/background-task", 400),
        ("/events/background-task?task_id=x", 400),
        ("/events/background-task?taskId=3b7fc8d7-c670-4afa-96ac-5bcc7f1cefe9", 404),
    ],
)
async def test_bad_subscriptions(api: Api, target: str, status: int) -> None:
    assert (await api.user.request("GET", target, content_type=None)).status == status


@pytest.mark.parametrize("parameter", ["task_id", "taskId"])
async def test_a_background_task(api: Api, parameter: str) -> None:
    go = asyncio.Event()

    async def work(progress: Any) -> str:
        await go.wait()
        await progress.update(1, 2, "half")
        return "all done"

    tasks = api.cluster.manager.services.tasks
    task_id = await tasks.start(api.cluster.user, "test", work)
    assert (await api.other.request("GET", f"/events/background-task?{parameter}={task_id}")).status == 404
    events, writer = await listen(api.user, f"/events/background-task?{parameter}={task_id}")
    go.set()
    told = await events.until(b"server_close")
    names = [e["event"] for e in told]
    assert names[-3:] == ["bgtask_done", "task_done", "server_close"]
    assert {"bgtask_updated", "task_updated"} <= set(names)
    for event in told[:-1]:
        data = json.loads(event["data"])
        assert {"task_id", "current_progress", "total_progress", "message"} <= set(data)
        assert [type(data[name]) for name in ("current_progress", "total_progress")] == [int, int], (
            "no 1.0 (spec 03-08)"
        )
    again, second = await listen(api.user, f"/events/background-task?{parameter}={task_id}")
    assert [e["event"] for e in await again.until(b"server_close")] == ["bgtask_done", "task_done", "server_close"]
    writer.close()
    second.close()
