"""Archives that mean harm, and archives of each kind that is accepted."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput, LimitExceeded
from ai.backend.runtime.process import rootfs
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

PYTHON = ("usr/bin/python3.9", b"#!")


def entry(name: str, data: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o755
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, data


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def bring(tmp_path: Path, data: bytes, name: str = "a/b:1", **options: Any) -> Path:
    source = tmp_path / "source.tar"
    source.write_bytes(data)
    image = rootfs.import_image(source, name, tmp_path / "images", **options)
    assert image.rootfs is not None
    return image.rootfs


def test_a_plain_root_is_imported_and_listed(tmp_path: Path) -> None:
    root = bring(
        tmp_path,
        archive(
            entry(*PYTHON),
            entry("bin", type=tarfile.SYMTYPE, linkname="usr/bin"),
            entry("bin/x", b"1"),
            entry("etc/backend.ai/jail/policy.yml", b"x"),
        ),
    )
    assert (root / "usr/bin/x").read_bytes() == b"1", "a link of the archive is followed inside of it"
    (image,) = rootfs.list_images(tmp_path / "images")
    assert image.unused == {"jail policy": "/etc/backend.ai/jail/policy.yml"}
    assert (image.name, image.interpreter) == ("a/b:1", "/usr/bin/python3.9")
    assert rootfs.remove_image("a/b:1", tmp_path / "images")
    assert rootfs.list_images(tmp_path / "images") == []


def test_the_labelled_interpreter_is_taken_if_it_is_one(tmp_path: Path) -> None:
    for name in ("usr/bin/python3.12", "opt/app/bin/python3.9", "opt/old/bin/python3.6"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "opt/app/bin/python3").symlink_to("python3.9")
    (tmp_path / "opt/app/bin/python").symlink_to("python3")
    (tmp_path / "opt/app/bin/loop").symlink_to("loop")
    assert rootfs.find_python(tmp_path, "/opt/app/bin/python") == "/opt/app/bin/python"
    for label in ("", "/opt/old/bin/python3.6", "/opt/app/bin/loop", "python", "/nowhere/python3.9"):
        assert rootfs.find_python(tmp_path, label) == "/usr/bin/python3.12"


@pytest.mark.parametrize(
    "bad",
    [
        [entry("../outside", b"x")],
        [entry("a/../../outside", b"x")],
        [entry("hard", type=tarfile.LNKTYPE, linkname="../../outside")],
        [entry("etc", type=tarfile.SYMTYPE, linkname="/etc")],
        [entry("loop", type=tarfile.SYMTYPE, linkname="loop"), entry("loop/x", b"x")],
    ],
)
def test_what_points_outside_is_refused(tmp_path: Path, bad: list[Any]) -> None:
    (tmp_path / "outside").write_text("untouched")
    with pytest.raises(InvalidInput):
        bring(tmp_path, archive(entry(*PYTHON), *bad))
    assert (tmp_path / "outside").read_text() == "untouched"
    assert rootfs.list_images(tmp_path / "images") == []
    assert list((tmp_path / "images").iterdir()) == []


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    """An absolute link is a link of the image's own root; writing through it stays there."""
    victim = tmp_path / "victim"
    victim.mkdir()
    links = [entry("data", type=tarfile.SYMTYPE, linkname=str(victim)), entry("data/planted", b"x")]
    up = [entry("up", type=tarfile.SYMTYPE, linkname="../../../.."), entry("up/planted2", b"x")]
    root = bring(tmp_path, archive(entry(*PYTHON), *links, *up))
    assert list(victim.iterdir()) == []
    assert (root / "planted2").read_bytes() == b"x"
    assert not (tmp_path / "planted2").exists()


def test_devices_are_skipped_and_privileges_dropped(tmp_path: Path) -> None:
    odd = [
        entry("dev/sda", type=tarfile.BLKTYPE, devmajor=8),
        entry("dev/pipe", type=tarfile.FIFOTYPE),
        entry("usr/bin/su", b"x", mode=0o6755),
    ]
    root = bring(tmp_path, archive(entry(*PYTHON), *odd))
    assert list((root / "dev").iterdir()) == []
    assert (root / "usr/bin/su").stat().st_mode & 0o7777 == 0o755


def test_bombs_are_stopped(tmp_path: Path) -> None:
    big = archive(entry(*PYTHON), entry("zeros", bytes(3 << 20)))
    with pytest.raises(LimitExceeded):
        bring(tmp_path, gzip.compress(big), budget=rootfs.ImportBudget(bytes_left=1 << 20))
    many = archive(entry(*PYTHON), *(entry(f"f{n}") for n in range(100)))
    with pytest.raises(LimitExceeded):
        bring(tmp_path, many, budget=rootfs.ImportBudget(entries_left=50))
    assert list((tmp_path / "images").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"no archive", archive(), archive(entry("usr/bin/python3.7", b""))])
def test_what_is_no_image_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidInput):
        bring(tmp_path, data)


@pytest.mark.parametrize("name", ["", "UPPER", "../x", "a//b", "a b", "x" * 300, "a:b:c"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        bring(tmp_path, archive(entry(*PYTHON)), name)


def blob(data: bytes) -> tuple[str, bytes]:
    return hashlib.sha256(data).hexdigest(), data


def oci() -> dict[str, bytes]:
    """An image layout of two layers, of which the second removes a file of the first."""
    lower = blob(gzip.compress(archive(entry(*PYTHON), entry("gone", b"x"), entry("full/a", b"x"))))
    upper = blob(gzip.compress(archive(entry(".wh.gone"), entry("full/.wh..wh..opq"), entry("full/b", b"y"))))
    labels = {"ai.backend.runtime-type": "python", "team": "ml"}
    config = blob(json.dumps({"config": {"Labels": labels}}).encode())
    layers = [{"digest": f"sha256:{digest}"} for digest, _ in (lower, upper)]
    manifest = blob(json.dumps({"config": {"digest": f"sha256:{config[0]}"}, "layers": layers}).encode())
    index = json.dumps({"manifests": [{"digest": f"sha256:{manifest[0]}"}]}).encode()
    return {
        "index.json": index,
        **{f"blobs/sha256/{digest}": data for digest, data in (lower, upper, config, manifest)},
    }


def check_oci(root: Path, images: Path) -> None:
    assert not (root / "gone").exists()
    assert sorted(os.listdir(root / "full")) == ["b"]
    (image,) = rootfs.list_images(images)
    assert image.labels["team"] == "ml"
    assert image.digest.startswith("sha256:")


def test_an_oci_archive(tmp_path: Path) -> None:
    root = bring(tmp_path, archive(*(entry(name, data) for name, data in oci().items())))
    check_oci(root, tmp_path / "images")


def test_an_oci_directory(tmp_path: Path) -> None:
    for name, data in oci().items():
        path = tmp_path / "layout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    image = rootfs.import_image(tmp_path / "layout", "x", tmp_path / "images")
    assert image.rootfs is not None
    assert image.name == "x:latest"
    check_oci(image.rootfs, tmp_path / "images")


def test_an_archive_of_docker_save(tmp_path: Path) -> None:
    layer = archive(entry(*PYTHON), entry("hello", b"docker"))
    env = ["PATH=/opt/tool/bin:/usr/bin", "MODEL=a=b", "EMPTY="]
    config = {"Env": env, "User": "1000", "WorkingDir": "/app", "Entrypoint": ["python", "-u"], "Cmd": None}
    files = {
        "abc.json": json.dumps({"config": config}).encode(),
        "l/layer.tar": layer,
        "manifest.json": json.dumps([{"Config": "abc.json", "Layers": ["l/layer.tar"]}]).encode(),
    }
    root = bring(tmp_path, archive(*(entry(name, data) for name, data in files.items())))
    assert (root / "hello").read_bytes() == b"docker"
    (image,) = rootfs.list_images(tmp_path / "images")
    assert image.environ == {"PATH": "/opt/tool/bin:/usr/bin", "MODEL": "a=b", "EMPTY": ""}
    assert image.unused == {"User": "1000", "WorkingDir": "/app", "Entrypoint": "python -u"}


@pytest.mark.parametrize("config", [{"Env": ["A B=1"]}, {"Env": ["A=\0"]}, {"Env": 7}, [1]])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, config: object) -> None:
    files = {
        "abc.json": json.dumps({"config": config}).encode(),
        "l/layer.tar": archive(entry(*PYTHON)),
        "manifest.json": json.dumps([{"Config": "abc.json", "Layers": ["l/layer.tar"]}]).encode(),
    }
    with pytest.raises(InvalidInput):
        bring(tmp_path, archive(*(entry(name, data) for name, data in files.items())))


def test_a_manifest_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "layout" / "blobs").mkdir(parents=True)
    (tmp_path / "layout" / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:../../secret"}]}))
    with pytest.raises(InvalidInput):
        rootfs.import_image(tmp_path / "layout", "x", tmp_path / "images")


def test_a_directory_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "dir"
    (source / "usr/bin").mkdir(parents=True)
    (source / PYTHON[0]).write_bytes(b"#!")
    (source / "etc").mkdir()
    (source / "etc" / "resolv.conf").symlink_to("/run/resolv.conf")
    os.mkfifo(source / "pipe")
    image = rootfs.import_image(source, "x", tmp_path / "images")
    assert image.rootfs is not None
    assert not (image.rootfs / "etc/resolv.conf").is_symlink()
    assert not (image.rootfs / "pipe").exists()


async def test_a_runtime_loads_an_archive_of_its_node(tmp_path: Path) -> None:
    runtime = ProcessRuntime(ProcessRuntimeSettings(sandbox="off", cgroups="off"), tmp_path / "state")
    (tmp_path / "root.tar").write_bytes(archive(entry(*PYTHON)))
    (tmp_path / "bad.tar").write_bytes(b"bad")
    await runtime.setup()
    try:
        await runtime.load_image("team/tool:1.0", tmp_path / "root.tar")
        assert "team/tool:1.0" in {image.name for image in await runtime.list_images()}
        with pytest.raises(InvalidInput):
            await runtime.load_image("team/tool:1.0", tmp_path / "bad.tar")
        with pytest.raises(InvalidInput):
            await runtime.load_image("team/tool:1.0", tmp_path / "none")
        assert "team/tool:1.0" in {image.name for image in await runtime.list_images()}
    finally:
        await runtime.shutdown()
