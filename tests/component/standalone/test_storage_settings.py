"""What an administrator may add to the storage proxy of the embedded cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.standalone.instance import ClusterFile
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.storage_daemon import secret, settings


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.make()
    return made


def test_a_file_in_the_data_directory_adds_and_does_not_replace(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "storage-proxy.toml").write_text(
        '[artifacts]\nallowed-hosts = ["hub.example"]\n'
        f'[volume.more]\nbackend = "vfs"\npath = "{tmp_path}/more"\n'
        '[api.manager]\nsecret = "something else that is long enough"\n'
    )
    found = settings(layout, ClusterFile(storage_port=7001, storage_manager_port=7002))
    assert found.artifacts.allowed_hosts == ["hub.example"]
    assert sorted(found.volume) == ["more", "volume1"]
    assert found.api.manager.service_addr.port == 7002
    own_secret = secret(layout, "storage-manager")
    assert found.api.manager.secret.get_secret_value() == own_secret, "or the manager is locked out"


def test_a_bad_file_is_named(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "storage-proxy.toml").write_text("[artifacts]\nallowed-host = 1\n")
    with pytest.raises(InvalidInput, match=r"storage-proxy\.toml: artifacts\.allowed-host"):
        settings(layout, ClusterFile(storage_port=7001, storage_manager_port=7002))


@pytest.mark.needs("root")
def test_files_belong_to_the_user_that_sessions_run_as(layout: Layout, tmp_path: Path) -> None:
    def owner(**cluster: Any) -> tuple[Any, Any]:
        proxy = settings(layout, ClusterFile(storage_port=7001, storage_manager_port=7002, **cluster)).storage_proxy
        return proxy.user, proxy.group

    assert owner() == (59500, 59500)
    (tmp_path / "i-local.toml").write_text("[runtime]\nkernel-uid = 1234\n")
    assert owner(agent_config=str(tmp_path)) == (1234, 59500)
    (tmp_path / "i-local.toml").write_text("[container]\nkernel-uid = 1234\nkernel-gid = 77\n")
    assert owner(agent_config=str(tmp_path)) == (1234, 77)
    with pytest.raises(InvalidInput, match="i-local and i-local-2 have different kernel-uid"):
        owner(agent_config=str(tmp_path), agents=2)
