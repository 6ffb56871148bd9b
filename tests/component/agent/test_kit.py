"""The kit: whole, found again, and running where there is nothing else."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

from ai.backend.agent.kit import build
from ai.backend.agent.kit.build import KitStore, build_kit
from ai.backend.agent.kit.programs.ttyd import Server
from ai.backend.common.errors import Unavailable
from tests.support.serving import serve


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_kit(tmp_path_factory.mktemp("kits"))


@pytest.mark.needs("bwrap")
def test_it_runs_in_an_empty_root_file_system(kit: Path) -> None:
    launch = [str(part).replace("{kit}", "/kit") for part in json.loads((kit / "launch.json").read_text())]
    code = (
        "import sys; sys.path.append('/kit/site'); import aiohttp.web, asyncssh, ssl, encodings.idna; print(sys.prefix)"
    )
    sandbox = [
        "bwrap",
        "--unshare-all",
        "--ro-bind",
        str(kit),
        "/kit",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--clearenv",
    ]
    done = subprocess.run(
        [*sandbox, "--", *launch, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "/kit\n", "")
    assert all(path.stat().st_mode & 0o004 for path in kit.rglob("*"))


def test_it_is_made_once(kit: Path) -> None:
    before = sha256(repr(sorted(kit.rglob("*"))).encode()).hexdigest()
    (kit.parent / f".{kit.name}.1").mkdir()  # of an agent that was killed
    assert build_kit(kit.parent) == kit
    assert sha256(repr(sorted(kit.rglob("*"))).encode()).hexdigest() == before


async def test_a_kit_gets_the_terminal_page_once_the_console_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle: list[Path | None] = [None]
    monkeypatch.setattr(build, "find_bundle", lambda: bundle[0])
    store = KitStore(tmp_path / "kits")
    store.open()
    before = await store.ensure()
    assert await store.ensure() == before
    assert not (store.directory / before / "programs" / "xterm").exists()
    (tmp_path / "bundle" / "terminal").mkdir(parents=True)
    (tmp_path / "bundle" / "terminal" / "xterm.js").write_text("1")
    bundle[0] = tmp_path / "bundle"
    after = await store.ensure()
    assert after != before
    assert (store.directory / after / "programs" / "xterm" / "xterm.js").read_text() == "1"
    assert await store.ensure() == after


async def test_without_the_console_the_terminal_page_says_what_to_type() -> None:
    runner, port = await serve(Server().app(), "127.0.0.1", 0)
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/") as reply:
        assert "<code>backend.ai web build</code>" in await reply.text()
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    await runner.cleanup()


async def test_where_it_cannot_be_made_services_say_so(tmp_path: Path) -> None:
    place = tmp_path / "kit"
    store = KitStore(place)
    store.open()
    place.rmdir()
    place.write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be made"):
        await store.ensure()


async def test_those_of_other_versions_go_once_nothing_runs_from_them(kit: Path, tmp_path: Path) -> None:
    place = tmp_path / "kit"
    store = KitStore(place)
    store.open()
    await store.clean()
    for name in (kit.name, "of-a-session", "of-nobody", ".unfinished.1"):
        (place / name / "bin").mkdir(parents=True)
    used = place / "of-a-session" / "bin" / "sleep"
    used.symlink_to(shutil.which("sleep") or "/bin/sleep")
    process = await asyncio.create_subprocess_exec(str(used), "1000")
    await store.clean()
    assert {path.name for path in place.iterdir()} == {kit.name, "of-a-session"}
    process.kill()
    await process.wait()
    await store.clean()
    assert {path.name for path in place.iterdir()} == {kit.name}
