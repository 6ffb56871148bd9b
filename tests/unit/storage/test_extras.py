"""What says which extra is missing."""

from __future__ import annotations

import sys

import pytest

from ai.backend.common.errors import InvalidInput, NotSupported, PluginError
from ai.backend.plugin.object_storage import ObjectStorage, StorageContext
from ai.backend.storage.artifacts import hub
from ai.backend.storage.volumes.registry import load_backend
from ai.backend.volume.object import s3
from ai.backend.volume.object.s3 import S3Storage


def test_hubs_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    hub.install_transport.cache_clear()
    with pytest.raises(NotSupported, match=r"backendai\[artifacts\]"):
        hub.install_transport()


def test_s3_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    s3.shared_session.cache_clear()
    with pytest.raises(InvalidInput, match=r"backendai\[s3\]"):
        S3Storage("s3", {"bucket": "artifacts"}, StorageContext())


class _Old(ObjectStorage):
    spi_version = 0


def test_backends_by_name() -> None:
    assert load_backend("s3", ObjectStorage) is S3Storage
    with pytest.raises(InvalidInput, match="built in are directory, s3"):
        load_backend("tape", ObjectStorage)
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        load_backend("no.such.module:Storage", ObjectStorage)
    with pytest.raises(PluginError, match=r"is no subclass of .*ObjectStorage"):
        load_backend("pathlib:Path", ObjectStorage)
    with pytest.raises(PluginError, match="version 0"):
        load_backend(f"{__name__}:_Old", ObjectStorage)
