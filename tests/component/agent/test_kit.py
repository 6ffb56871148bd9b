"""The kit: whole, found again, and running where there is nothing else."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from ai.backend.agent.kit.build import PROGRAMS, KitStore, build_kit
from ai.backend.common.errors import Unavailable


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


def test_the_page_is_what_was_published() -> None:
    versions = json.loads((PROGRAMS / "xterm" / "versions.json").read_text())
    files = {name: digest for package in versions.values() for name, digest in package["files"].items()}
    assert sorted(files) == ["addon-fit.js", "xterm.css", "xterm.js"]
    for name, digest in files.items():
        assert sha256((PROGRAMS / "xterm" / name).read_bytes()).hexdigest() == digest
    assert "MIT" in versions["@xterm/xterm"]["licence"]
    assert (PROGRAMS / "xterm" / "LICENSE.xterm").read_text().startswith("Copyright")


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
