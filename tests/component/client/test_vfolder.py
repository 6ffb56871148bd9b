"""The SDK's virtual folders against a real manager and a real storage proxy, over a wire that breaks."""

from __future__ import annotations

import asyncio
import os
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError
from ai.backend.client.session import AsyncSession
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.composition.app import build_app
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.main import StorageProxy
from tests.support.cut_wire import CutWire
from tests.support.migrated import migrated
from tests.support.serving import serve

SECRETS = "a secret of the tokens, of 32 bytes or more"
MIB = 1024 * 1024


@dataclass
class Place:
    """A user's and another user's API sessions, and the wire to the storage proxy's client API."""

    user: AsyncSession
    admin: AsyncSession
    wire: CutWire
    proxy: StorageProxy
    path: Path


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "volume").mkdir()
    settings = {
        "storage-proxy": {"secret": SECRETS},
        "api": {"manager": {"secret": SECRETS}},
        "volume": {"volume1": {"backend": "vfs", "path": str(tmp_path / "volume")}},
    }
    proxy = StorageProxy(StorageSettings.model_validate(settings))
    await proxy.start(client=("127.0.0.1", 0), manager=("127.0.0.1", 0))
    wire = CutWire(int(proxy.client_url.rpartition(":")[2]))
    link, database = MemoryLink(), Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
    manager = Manager(ManagerSettings(), database, Bus(), link.manager, hash_password=str)
    await manager.start()
    keys = {"manager_api": proxy.manager_url, "secret": SECRETS, "client_api": await wire.start()}
    await manager.stores.config.put_many({f"volumes/proxies/local/{name}": value for name, value in keys.items()})
    made = await manager.bootstrap.run(vfolder_hosts=["local:volume1"])
    runner, port = await serve(build_app(manager), "127.0.0.1", 0)
    assert made.user is not None
    assert made.admin is not None
    sessions = [
        AsyncSession(
            config=APIConfig(
                endpoint=f"http://127.0.0.1:{port}", access_key=pair.access_key, secret_key=pair.secret_key
            )
        )
        for pair in (made.user, made.admin)
    ]
    for session in sessions:
        await session.open()
    yield Place(sessions[0], sessions[1], wire, proxy, tmp_path)
    for session in sessions:
        await session.close()
    await runner.cleanup()
    await manager.stop()
    await database.close()
    await wire.stop()
    await proxy.stop()


def tree(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


async def test_many_files_take_few_requests(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.user.VFolder.create("data", "local:volume1")
    folder, local = place.user.VFolder("data"), place.path / "local"
    for number in range(250):
        path = local / f"d{number % 7}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    (local / "big").write_bytes(os.urandom(65 * MIB))
    requests: list[str] = []
    send = folder._change

    async def count(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        requests.append(path.rpartition("/")[2])
        return await send(method, path, body)

    monkeypatch.setattr(folder, "_change", count)
    await folder.upload(["."], basedir=local, recursive=True)
    await folder.download(["."], basedir=place.path / "back", recursive=True)
    assert tree(place.path / "back") == tree(local)
    assert sorted(requests) == sorted(
        ["mkdir", "request-upload", *["request-uploads"] * 3, "request-download", *["request-downloads"] * 3]
    )


async def test_of_many_files_all_or_none_get_a_ticket(place: Place) -> None:
    await place.user.VFolder.create("data", "local:volume1")
    folder = place.user.VFolder("data")
    await folder.mkdir("d")
    with pytest.raises(BackendAPIError):
        await folder.request_uploads([("a", 5), ("b", 5), ("d", 5)])
    assert not [path for path in place.path.glob("volume/**/*") if path.is_file() and path.stat().st_size == 5]
    with pytest.raises(BackendAPIError, match="1000"):
        await folder.request_uploads([(f"f{number}", 1) for number in range(1_001)])


@pytest.mark.parametrize("plain", ["volume1", "local"])
async def test_a_plain_name_means_the_only_host_of_it(place: Place, plain: str) -> None:
    assert (await place.user.VFolder.create("data", plain, cloneable=True))["host"] == "local:volume1"
    assert (await place.user.VFolder("data").clone("copy", plain))["host"] == "local:volume1"
    with pytest.raises(BackendAPIError, match="nowhere"):
        await place.user.VFolder.create("other", "nowhere")


async def test_storage_proxies_are_reached_as_the_address_map_says(place: Place) -> None:
    await place.user.VFolder.create("data", "local:volume1")
    folder = place.user.VFolder("data")
    (place.path / "f.txt").write_text("x")
    announced = (await folder.request_upload("f.txt", 1)).url.partition("/upload")[0]
    place.user.config.storage_proxy_address_map = {f"{announced}/": place.proxy.client_url}
    await folder.upload(["f.txt"], basedir=place.path)
    await folder.download(["f.txt"], basedir=place.path / "back")
    assert (place.path / "back/f.txt").read_text() == "x"
    assert place.wire.connections == 0


async def test_a_tree_goes_up_and_comes_back_the_same(place: Place) -> None:
    await place.user.VFolder.create("data", "local:volume1")
    folder = place.user.VFolder("data")
    local = place.path / "local"
    (local / "d/e").mkdir(parents=True)
    (local / "d/empty").mkdir()
    (local / "big").write_bytes(os.urandom(3 * MIB + 17))
    (local / "d/e/한글 + name").write_bytes(b"x")
    (local / "d/zero").touch()
    seen: dict[str, tuple[int, int]] = {}
    sent = await folder.upload(
        ["big", "d"],
        basedir=local,
        recursive=True,
        chunk_size=MIB,
        progress=lambda path, done, total: seen.__setitem__(path, (done, total)),
    )
    assert sent == ["big", "d/e/한글 + name", "d/zero"]
    assert seen["big"] == (3 * MIB + 17, 3 * MIB + 17)
    names = {entry["name"]: entry["type"] for entry in await folder.list_files("d")}
    assert names == {"e": "DIRECTORY", "empty": "DIRECTORY", "zero": "FILE"}
    assert (await folder.info())["num_files"] == 3
    back = place.path / "back"
    await folder.download(["big", "d"], basedir=back, recursive=True)
    assert tree(back) == tree(local)
    assert (back / "d/empty").is_dir()
    archive = await folder.download_archive("d", place.path / "d.zip")
    with zipfile.ZipFile(archive) as packed:
        assert any(name.endswith("e/한글 + name") for name in packed.namelist())


async def test_an_upload_that_breaks_goes_on_where_it_broke(place: Place) -> None:
    await place.user.VFolder.create("data")
    local = place.path / "file"
    local.write_bytes(os.urandom(5 * MIB))
    place.wire.cuts = [300_000, 2 * MIB, 1_500_000]
    folder = place.user.VFolder("data")
    await folder.upload([local], basedir=place.path, chunk_size=2 * MIB)
    assert place.wire.connections > 3
    await folder.download(["file"], basedir=place.path / "back")
    assert (place.path / "back/file").read_bytes() == local.read_bytes()


async def test_the_next_run_goes_on_with_an_upload(place: Place) -> None:
    await place.user.VFolder.create("data")
    local = place.path / "file"
    local.write_bytes(os.urandom(6 * MIB))
    folder = place.user.VFolder("data")
    begun = asyncio.Event()

    def stop_in_the_middle(_path: str, done: int, _total: int) -> None:
        if done >= 4 * MIB:
            begun.set()

    first = asyncio.create_task(folder.upload([local], basedir=place.path, chunk_size=MIB, progress=stop_in_the_middle))
    await begun.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    steps: list[int] = []
    await folder.upload([local], basedir=place.path, chunk_size=MIB, progress=lambda _p, done, _t: steps.append(done))
    assert steps[0] >= 4 * MIB, "what had come is not sent again"
    [entry] = await folder.list_files()
    assert entry["size"] == 6 * MIB
    await folder.download(["file"], basedir=place.path / "back")
    assert (place.path / "back/file").read_bytes() == local.read_bytes()
    assert list((place.path / "cache").rglob("*.json")) == [], "a finished upload leaves no note"


async def test_a_file_that_changed_is_sent_anew(place: Place) -> None:
    await place.user.VFolder.create("data")
    local = place.path / "file"
    local.write_bytes(b"a" * 3 * MIB)
    folder = place.user.VFolder("data")
    failing = asyncio.create_task(folder.upload([local], basedir=place.path, chunk_size=MIB))
    await asyncio.sleep(0.15)
    failing.cancel()
    await asyncio.gather(failing, return_exceptions=True)
    local.write_bytes(b"b" * 3 * MIB)
    await folder.upload([local], basedir=place.path, chunk_size=MIB)
    await folder.download(["file"], basedir=place.path / "back")
    assert set((place.path / "back/file").read_bytes()) == {ord("b")}


async def test_a_download_that_breaks_is_completed(place: Place) -> None:
    await place.user.VFolder.create("data")
    local = place.path / "file"
    local.write_bytes(os.urandom(4 * MIB))
    folder = place.user.VFolder("data")
    await folder.upload([local], basedir=place.path)
    place.wire.upwards = False
    place.wire.cuts = [MIB, 500_000]
    for session in (place.user, place.admin):
        await session.close()
        await session.open()
    place.wire.connections = 0
    await folder.download(["file"], basedir=place.path / "back")
    assert place.wire.connections >= 3
    assert (place.path / "back/file").read_bytes() == local.read_bytes()
    assert sorted(p.name for p in (place.path / "back").iterdir()) == ["file"], "nothing half is left"


async def test_what_cannot_be_sent_or_fetched(place: Place) -> None:
    await place.user.VFolder.create("data")
    folder = place.user.VFolder("data")
    (place.path / "inner/d").mkdir(parents=True)
    (place.path / "outside").touch()
    with pytest.raises(BackendClientError, match="is a directory"):
        await folder.upload(["d"], basedir=place.path / "inner")
    with pytest.raises(BackendClientError, match="outside of"):
        await folder.upload(["../outside"], basedir=place.path / "inner")
    with pytest.raises(BackendClientError, match="no regular file"):
        await folder.upload(["gone"], basedir=place.path / "inner")
    with pytest.raises(BackendClientError, match="outside of"):
        await folder.download(["../up"], basedir=place.path / "inner")
    with pytest.raises(BackendAPIError) as caught:
        await folder.download(["gone"], basedir=place.path / "inner")
    assert caught.value.code == "file-not-found"
    with pytest.raises(BackendAPIError) as caught:
        await place.user.VFolder("nobody's").upload(["d"], basedir=place.path / "inner", recursive=True)
    assert caught.value.status == 404


async def test_the_program_of_the_page_runs(place: Place) -> None:
    page = Path(__file__).parents[3] / "docs/howto/use-folders.md"
    program = place.path / "program.py"
    program.write_text(page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0])
    (place.path / "bigdata.csv").write_text("1,2")
    config = place.user.config
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BACKEND")},
        "BACKEND_ENDPOINT": str(config.endpoint),
        "BACKEND_ACCESS_KEY": config.access_key,
        "BACKEND_SECRET_KEY": config.secret_key,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), env=environment, cwd=place.path, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, output) == (0, b"bigdata.csv 3\n")


async def test_folders_from_their_making_to_their_end(place: Place) -> None:
    api = place.user
    made = await api.VFolder.create("data", cloneable=True)
    assert [f["name"] for f in await api.VFolder.list()] == ["data"]
    assert (await api.VFolder.paginated_list()).items[0]["id"] == made["id"]
    assert (await api.VFolder.list_hosts())["allowed"] == ["local:volume1"]
    folder = api.VFolder("data")
    await folder.mkdir(["a/b"], parents=True)
    await folder.rename("renamed")
    clone = await folder.clone("copy")
    assert (await api.BackgroundTask(clone["bgtask_id"]).wait()).state == "done"
    assert [e["name"] for e in await api.VFolder("copy").list_files()] == ["a"]
    assert await folder.invite("ro", ["admin@local"]) == ["admin@local"]
    [invitation] = await place.admin.VFolder.invitations()
    await place.admin.VFolder.accept_invitation(invitation["id"])
    [share] = await api.VFolder.list_shared()
    await api.VFolder.update_shared(made["id"], share["shared_to"]["uuid"], None)
    assert list(await api.VFolder.list_shared()) == []
    await folder.delete()
    await folder.restore()
    await folder.delete()
    await folder.purge()
    assert [f["name"] for f in await api.VFolder.list()] == ["copy"]


async def test_a_name_in_the_trash_means_the_folder_there(place: Place) -> None:
    api = place.user
    thrown_away, folder = await api.VFolder.create("data"), api.VFolder("data")
    await folder.delete()
    live = await api.VFolder.create("data")
    with pytest.raises(BackendAPIError, match="There is a folder 'data' already"):
        await folder.restore()
    await folder.purge()
    assert (await folder.get_id()).hex == live["id"].replace("-", "")
    assert (await api.VFolder(thrown_away["id"]).info())["status"] != "delete-pending"


async def test_what_administrators_do(place: Place) -> None:
    """The page's model store, and each area of the SDK that is for superadmins."""
    admin, user = place.admin, place.user
    await admin.VFolder.create("bert", group="model-store", usage_mode="model")
    await admin.VFolder("bert").mkdir("weights")
    clone = await user.VFolder("bert").clone("my-bert", usage_mode="model")
    assert (await user.BackgroundTask(clone["bgtask_id"]).wait()).state == "done"
    assert [e["name"] for e in await user.VFolder("my-bert").list_files()] == ["weights"]
    host, scope = "local:volume1", clone["quota_scope_id"]
    await admin.QuotaScope.set(host, scope, 1000)
    (place.path / "big").write_bytes(b"x" * 5000)
    with pytest.raises(BackendAPIError) as caught:
        await user.VFolder("my-bert").upload(["big"], basedir=place.path)
    assert caught.value.status == 507
    found = await user.QuotaScope.get(host, scope)
    assert (found["hard_limit_bytes"], found["enforcement"]) == (1000, "soft")
    with pytest.raises(BackendAPIError, match="Only superadmins"):
        await user.QuotaScope.unset(host, scope)
    await admin.QuotaScope.unset(host, scope)
    await user.VFolder("my-bert").upload(["big"], basedir=place.path)
    assert (await user.QuotaScope.get(host, scope))["usage_bytes"] >= 5000
    await admin.ProjectResourcePolicy.create("default", max_quota_scope_size=1 << 30)
    await admin.ProjectResourcePolicy.update("default", max_vfolder_count=1)
    [policy] = await admin.ProjectResourcePolicy.list()
    assert (policy["max_vfolder_count"], policy["max_quota_scope_size"]) == (1, 1 << 30)
    with pytest.raises(BackendAPIError, match="allows 1 folders"):
        await admin.VFolder.create("second", group="model-store", usage_mode="model")
    with pytest.raises(BackendAPIError, match="in use"):
        await admin.ProjectResourcePolicy.delete("default")
    volume = (await admin.Storage.paginated_list()).items[0]
    assert (volume["id"], (await admin.Storage.detail(host) or {})["backend"]) == (host, "vfs")
    assert list(await admin.Storage.list_mounts()) == ["manager", "storage_proxy", "agents"]
    await admin.VFolder.change_ownership(clone["id"], "admin@local")
    assert "my-bert" not in [f["name"] for f in await user.VFolder.list()]
    await admin.Domain.update("default", allowed_vfolder_hosts={host: ["upload-file"]})
    with pytest.raises(BackendAPIError, match="may not create folders"):
        await user.VFolder.create("more")
    await admin.KeypairResourcePolicy.update("default", allowed_vfolder_hosts={host: ["create-vfolder"]})
    await user.VFolder.create("more")
    with pytest.raises(BackendAPIError, match="unmanaged-roots"):
        await admin.VFolder.create("raw", unmanaged_path="/mnt/raw")
    with pytest.raises(BackendAPIError, match="Only superadmins"):
        await user.Domain.update("default", allowed_vfolder_hosts={})
