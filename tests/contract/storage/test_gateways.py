"""What the manager needs of a storage proxy: the same of the fake and of the real daemon over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import aiohttp
import pytest

from ai.backend.common.errors import (
    BackendError,
    FolderNotFound,
    InvalidInput,
    NotFound,
    QuotaScopeNotFound,
    Unavailable,
    VolumeNotFound,
)
from ai.backend.common.folders import FolderKey
from ai.backend.common.ids import FolderId
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.infra.config_store import MemoryConfigStore
from ai.backend.manager.folders.client import StorageProxyFolders
from ai.backend.manager.folders.gateway import StorageGateway
from ai.backend.manager.storage_proxy import StorageProxies
from ai.backend.manager.volumes.client import StorageProxyVolumes
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.main import StorageProxy
from tests.support.fake_storage import FakeStorage

HOST = "local:volume1"
SECRET = "a secret of the manager and its storage proxy"


def key(host: str = HOST, folder_id: UUID | None = None) -> FolderKey:
    return FolderKey(host, f"user:{UUID(int=7)}", FolderId(folder_id or uuid4()))


class GatewayContract:
    """Override ``storage`` with an implementation that has the volume ``local:volume1``."""

    @pytest.fixture
    def storage(self) -> StorageGateway:
        pytest.fail("override the fixture `storage`")

    @pytest.fixture
    async def folder(self, storage: StorageGateway) -> FolderKey:
        made = key()
        await storage.create_folder(made)
        return made

    async def test_volumes_are_told_by_host(self, storage: StorageGateway) -> None:
        volumes = await storage.volumes()
        assert list(volumes) == [HOST]
        assert volumes[HOST].backend == "vfs"
        assert "vfolder" in volumes[HOST].capabilities
        assert await storage.default_host() == HOST

    async def test_making_and_deleting_may_be_repeated(self, storage: StorageGateway) -> None:
        folder = key()
        for _ in range(2):
            await storage.create_folder(folder)
        await storage.upload_ticket(folder, "kept", 0)
        await storage.create_folder(folder)
        assert (await storage.usage(folder)).files == 1
        for _ in range(2):
            await storage.delete_folder(folder)
        with pytest.raises(FolderNotFound):
            await storage.list_files(folder, ".")
        with pytest.raises(FolderNotFound):
            await storage.mount_path(folder)

    async def test_what_there_is_not(self, storage: StorageGateway, folder: FolderKey) -> None:
        with pytest.raises(VolumeNotFound):
            await storage.create_folder(key("local:nowhere"))
        with pytest.raises(VolumeNotFound):
            await storage.create_folder(key("nobody:volume1"))
        for work in (
            storage.list_files(folder, "gone"),
            storage.download_ticket(folder, "gone", archive=False, requester="u"),
            storage.rename_file(folder, "gone", "x"),
            storage.move_file(folder, "gone", "x"),
            storage.delete_files(folder, ["gone"], recursive=False),
        ):
            with pytest.raises(NotFound):
                await work

    async def test_a_folder_is_a_directory_that_sessions_mount(
        self, storage: StorageGateway, folder: FolderKey
    ) -> None:
        directory = Path(await storage.mount_path(folder))
        assert directory.is_absolute()
        (directory / "from-session").write_text("hello")
        items, cursor = await storage.list_files(folder, "")
        assert ([(i.name, i.size, i.is_directory) for i in items], cursor) == ([("from-session", 5, False)], None)
        assert items[0].mode.startswith("-rw")
        assert await storage.mount_path(key(folder_id=folder.folder_id)) == str(directory)
        (directory / "sub").mkdir()
        assert await storage.mount_path(folder, "sub") == str(directory / "sub")
        with pytest.raises(NotFound):
            await storage.mount_path(folder, "gone")
        with pytest.raises(InvalidInput):
            await storage.mount_path(folder, "../up")

    async def test_directories_and_files(self, storage: StorageGateway, folder: FolderKey) -> None:
        made = await storage.make_directories(folder, ["a/b", "c"], parents=True, exist_ok=False)
        assert made == {"a/b": None, "c": None}
        again = await storage.make_directories(folder, ["c", "d"], parents=False, exist_ok=False)
        assert again["d"] is None
        assert again["c"]
        assert await storage.make_directories(folder, ["c"], parents=False, exist_ok=True) == {"c": None}
        await storage.upload_ticket(folder, "a/empty", 0)
        await storage.rename_file(folder, "a/empty", "renamed")
        await storage.move_file(folder, "a/renamed", "c")
        items, _ = await storage.list_files(folder, "c")
        assert [i.name for i in items] == ["renamed"]
        with pytest.raises(InvalidInput):
            await storage.delete_files(folder, ["c"], recursive=False)
        await storage.delete_files(folder, ["c", "d"], recursive=True)
        items, _ = await storage.list_files(folder, ".")
        assert [(i.name, i.is_directory) for i in items] == [("a", True)]

    async def test_nothing_is_replaced_by_a_rename_or_a_move(self, storage: StorageGateway, folder: FolderKey) -> None:
        for name in ("a", "b"):
            await storage.upload_ticket(folder, name, 0)
        with pytest.raises(BackendError) as renamed:
            await storage.rename_file(folder, "a", "b")
        with pytest.raises(BackendError) as moved:
            await storage.move_file(folder, "a", "b")
        assert renamed.value.code == moved.value.code == "file-already-exists"

    async def test_a_long_directory_comes_in_pages(self, storage: StorageGateway, folder: FolderKey) -> None:
        directory = Path(await storage.mount_path(folder))
        for n in range(25):
            (directory / f"f{n:02}").touch()
        seen: list[str] = []
        cursor: str | None = None
        while True:
            items, cursor = await storage.list_files(folder, ".", limit=10, cursor=cursor)
            assert len(items) <= 10
            seen += [item.name for item in items]
            if cursor is None:
                break
        assert sorted(seen) == [f"f{n:02}" for n in range(25)]

    async def test_a_clone_is_whole_and_may_be_repeated(self, storage: StorageGateway, folder: FolderKey) -> None:
        source, target = Path(await storage.mount_path(folder)), key()
        (source / "d").mkdir()
        (source / "d/file").write_text("content")
        told: list[tuple[float, float]] = []

        async def progress(done: float, total: float) -> None:
            told.append((done, total))

        await storage.clone_folder(folder, target, progress)
        await storage.clone_folder(folder, target)
        copy = Path(await storage.mount_path(target))
        assert copy != source
        assert (copy / "d/file").read_text() == "content"
        with pytest.raises(NotFound):
            await storage.clone_folder(key(), key())

    async def test_a_quota_scope_has_a_limit_and_a_usage(self, storage: StorageGateway) -> None:
        scope = QuotaScopeId.parse(f"user:{uuid4()}")
        with pytest.raises(QuotaScopeNotFound):
            await storage.scope_usage(HOST, scope)
        with pytest.raises(VolumeNotFound):
            await storage.scope_usage("local:nowhere", scope)
        await storage.set_scope_limit(HOST, scope, 10_000)
        empty = await storage.scope_usage(HOST, scope)
        assert (empty.used_bytes, empty.file_count, empty.limit_bytes, empty.enforcement) == (0, 0, 10_000, "soft")
        folder = FolderKey(HOST, str(scope), FolderId(uuid4()))
        await storage.create_folder(folder)
        (Path(await storage.mount_path(folder)) / "file").write_bytes(b"x" * 4096)
        for limit in (5_000, None, None):
            await storage.set_scope_limit(HOST, scope, limit)
            assert (await storage.scope_usage(HOST, scope)).limit_bytes == limit
        await storage.delete_folder(folder)

    async def test_volumes_are_looked_at(self, storage: StorageGateway) -> None:
        assert (await storage.volume_health(HOST)).status == "healthy"
        usage = await storage.volume_usage(HOST)
        assert 0 < usage["used_bytes"] <= usage["capacity_bytes"]
        mounts = await storage.mounts()
        assert [(mount.volume, bool(mount.path)) for mount in mounts["local"]] == [("volume1", True)]
        with pytest.raises(VolumeNotFound):
            await storage.volume_metric("local:nowhere")
        assert await storage.blocked() == {}

    async def test_tickets(self, storage: StorageGateway, folder: FolderKey) -> None:
        ticket = await storage.upload_ticket(folder, "file", 5)
        assert ticket.url.endswith("/upload")
        assert ticket.token
        await storage.make_directories(folder, ["d"], parents=True, exist_ok=False)
        with pytest.raises(InvalidInput):
            await storage.download_ticket(folder, "d", archive=False, requester="u")
        assert (await storage.download_ticket(folder, "d", archive=True, requester="u")).token

    async def test_tickets_of_many_files(self, storage: StorageGateway, folder: FolderKey) -> None:
        tickets = await storage.upload_tickets(folder, [("a", 0), ("b", 5), ("c", 0)])
        assert [ticket.url.rpartition("/")[2] for ticket in tickets] == ["upload"] * 3
        assert len({ticket.token for ticket in tickets}) == 3
        tickets = await storage.download_tickets(folder, ["a", "c"], requester="u")
        assert [ticket.url.rpartition("/")[2] for ticket in tickets] == ["download"] * 2
        with pytest.raises(NotFound):
            await storage.download_tickets(folder, ["a", "b"], requester="u")


class TestFake(GatewayContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> StorageGateway:
        return FakeStorage(tmp_path / "storage")


def settings_of(path: Path) -> StorageSettings:
    path.mkdir()
    return StorageSettings.model_validate(
        {
            "storage-proxy": {"secret": "a secret of the tokens, of 32 bytes or more"},
            "api": {"manager": {"secret": SECRET}},
            "volume": {"volume1": {"backend": "vfs", "path": str(path)}},
        }
    )


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[StorageProxy]:
    proxy = StorageProxy(settings_of(tmp_path / "volume1"))
    await proxy.start(client=("127.0.0.1", 0), manager=("127.0.0.1", 0))
    yield proxy
    await proxy.stop()


class ProxyStorage(StorageProxyFolders, StorageProxyVolumes):
    """Both clients on one set of connections."""

    def __init__(self, proxies: StorageProxies) -> None:
        StorageProxyVolumes.__init__(self, proxies)
        self.close = proxies.close


async def connect(daemon: StorageProxy, **more: str) -> ProxyStorage:
    config = MemoryConfigStore()
    keys = {"manager_api": daemon.manager_url, "secret": SECRET, **more}
    await config.put_many({f"volumes/proxies/local/{name}": value for name, value in keys.items()})
    await config.put_many({"volumes/default_host": HOST})
    return ProxyStorage(StorageProxies(config))


class TestDaemon(GatewayContract):
    @pytest.fixture
    async def storage(self, daemon: StorageProxy) -> AsyncIterator[StorageGateway]:
        proxies = await connect(daemon)
        yield proxies
        await proxies.close()

    async def test_a_ticket_is_good_for_what_it_names(self, daemon: StorageProxy, storage: StorageGateway) -> None:
        folder = key()
        await storage.create_folder(folder)
        ticket = await storage.upload_ticket(folder, "file", 5)
        async with aiohttp.ClientSession() as http:
            headers = {
                "Tus-Resumable": "1.0.0",
                "Upload-Offset": "0",
                "Content-Type": "application/offset+octet-stream",
            }
            query = {"token": ticket.token}
            async with http.patch(ticket.url, params=query, headers=headers, data=b"hello") as reply:
                assert (reply.status, reply.headers["Upload-Offset"]) == (204, "5")
            download = await storage.download_ticket(folder, "file", archive=False, requester="u")
            async with http.get(download.url, params={"token": download.token}) as reply:
                assert await reply.read() == b"hello"
            async with http.get(download.url, params=query) as reply:
                assert reply.status == 401
        assert (await storage.usage(folder)).files == 1

    async def test_what_is_blocked_is_shared_configuration(self, daemon: StorageProxy) -> None:
        config = MemoryConfigStore()
        await config.put_many({f"volumes/blocked/{HOST}": "mount-in-session, clone-vfolder"})
        proxies = ProxyStorage(StorageProxies(config))
        assert await proxies.blocked() == {HOST: {"mount-in-session", "clone-vfolder"}}
        await proxies.close()

    async def test_clients_may_be_told_another_address(self, daemon: StorageProxy) -> None:
        proxies = await connect(daemon, client_api="https://files.example.org/proxy/")
        folder = key()
        await proxies.create_folder(folder)
        assert (await proxies.upload_ticket(folder, "f", 1)).url == "https://files.example.org/proxy/upload"
        await proxies.close()

    async def test_a_wrong_secret_and_a_silent_proxy_are_unavailable(self, daemon: StorageProxy) -> None:
        for more in ({"secret": "another secret"}, {"manager_api": "http://127.0.0.1:9"}):
            proxies = await connect(daemon, **more)
            assert dict(await proxies.volumes()) == {}
            with pytest.raises(Unavailable):
                await proxies.create_folder(key())
            await proxies.close()
