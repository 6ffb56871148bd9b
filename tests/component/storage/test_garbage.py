"""Whatever is sent to the manager-facing API, it answers with one clear sentence, and goes on."""

from __future__ import annotations

import random
from typing import Any
from uuid import uuid4

import pytest

from tests.support.storage_proxy import Caller

CALLS: dict[str, dict[str, Any]] = {
    "GET /volume/hwinfo": {},
    "GET /volume/performance-metric": {},
    "GET /volume/mounts": {},
    "GET /folder/fs-usage": {},
    "POST /quota-scope": {"qsid": "SCOPE", "options": {"limit_bytes": 1 << 40}},
    "GET /quota-scope": {"qsid": "SCOPE"},
    "PATCH /quota-scope": {"qsid": "SCOPE", "options": {"limit_bytes": 1 << 40}},
    "DELETE /quota-scope/quota": {"qsid": "SCOPE"},
    "POST /folder/create": {"vfid": "FOLDER", "mode": 0o755},
    "POST /folder/clone": {"src_volume": "volume1", "src_vfid": "FOLDER", "dst_volume": "volume1", "dst_vfid": "NEW"},
    "GET /task": {"task_id": str(uuid4())},
    "GET /folder/mount": {"vfid": "FOLDER", "subpath": "a"},
    "GET /folder/usage": {"vfid": "FOLDER"},
    "POST /folder/file/list": {"vfid": "FOLDER", "relpath": ".", "limit": 10, "cursor": None},
    "POST /folder/file/mkdir": {"vfid": "FOLDER", "relpath": ["a"], "parents": True, "exist_ok": True},
    "POST /folder/file/rename": {"vfid": "FOLDER", "relpath": "a", "new_name": "b"},
    "POST /folder/file/move": {"vfid": "FOLDER", "src_relpath": "a", "dst_relpath": "b"},
    "POST /folder/file/delete": {"vfid": "FOLDER", "relpaths": ["a"], "recursive": True},
    "POST /folder/file/download": {"vfid": "FOLDER", "relpath": "a", "archive": True},
    "POST /folder/file/archive-download-token": {"vfid": "FOLDER", "files": ["a"], "filename": "x"},
    "POST /folder/file/upload": {"vfid": "FOLDER", "relpath": "a", "size": 5},
    "POST /folder/file/fetch": {"vfid": "FOLDER", "relpath": "a"},
}
JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        2**63,
        10**400,
        1.5,
        "",
        " ",
        "..",
        "../..",
        "/etc/passwd",
        "a/../..",
        "a\0b",
        "\ud800",
        "x" * 300,
    ),
    *("x/" * 2100, "\n", "%00", "user:", "user:../x/..", f"user:{uuid4()}/", "{}", "volume2", [], [[]], ["..", None]),
    *({}, {"limit_bytes": -1}, {"limit_bytes": 2**64}, {"limit_bytes": "many"}, {"other": 1}, [""] * 100),
)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_that_is_sent_breaks_it(caller: Caller, seed: int) -> None:
    rng = random.Random(seed)
    vfid = await caller.folder()
    await caller.put(vfid, "a", b"content")
    known = {"FOLDER": vfid, "SCOPE": vfid.partition("/")[0], "NEW": f"user:{uuid4()}/{uuid4().hex}"}
    for _ in range(150):
        what, right = rng.choice(list(CALLS.items()))
        method, path = what.split(" ")
        body = {key: known.get(value, value) if isinstance(value, str) else value for key, value in right.items()}
        for key in rng.sample([*body, "volume", "surplus"], rng.randint(1, 2)):
            body[key] = rng.choice(JUNK)
        answer = await caller.ask(method, path, **body)
        shown = f"seed {seed}: {what} {body!r:.300} -> {answer.status} {answer.body[:300]!r}"
        assert answer.status < 500 or answer.status in (501, 507), shown
        if answer.status >= 400:
            assert {"title", "results"} & set(answer.json), shown  # of several directories each has its own message
            assert "Traceback" not in answer.body.decode(), shown
    assert (await caller.ask("GET", "/volume/hwinfo")).json["status"] == "healthy"
