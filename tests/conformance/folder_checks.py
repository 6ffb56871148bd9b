"""What the published client must be able to do with virtual folders; judged as in :mod:`tests.conformance.checks`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from ai.backend.client.exceptions import BackendAPIError
from ai.backend.client.func.vfolder import VFolder
from ai.backend.client.session import Session
from tests.conformance.checks import RESOURCES, Scene, ended, until

HOST = "local:volume1"


@contextlib.contextmanager
def folder(scene: Scene, name: str, *, by: Session | None = None) -> Iterator[VFolder]:
    """A folder that is gone afterwards."""
    server = by or scene.server
    server.VFolder.create(name, HOST)
    try:
        yield server.VFolder(name)
    finally:
        remove(scene, name, by=server)


def remove(scene: Scene, name: str, *, by: Session | None = None) -> None:
    handle = (by or scene.server).VFolder(name)
    for step in (handle.delete, handle.purge):
        with contextlib.suppress(BackendAPIError):
            step()


def names(scene: Scene) -> set[str]:
    return {one["name"] for one in scene.server.VFolder.list()}


def check_vfolder_create(scene: Scene) -> None:
    try:
        said = ended(scene.client("vfolder", "create", "-p", "ro", "conf-create", HOST))
        assert 'Virtual folder "conf-create" is created.' in said.all, said.all
        made = scene.server.VFolder("conf-create").info()
        assert (made["host"], made["is_owner"], made["usage_mode"]) == (HOST, True, "general")
        again = ended(scene.client("vfolder", "create", "conf-create", HOST))
        assert "400" in again.all, again.all
    finally:
        remove(scene, "conf-create")


def check_vfolder_hosts(scene: Scene) -> None:
    said = ended(scene.client("vfolder", "list-hosts"))
    assert f"Default vfolder host: {HOST}" in said.all, said.all
    assert f"Usable hosts: {HOST}" in said.all, said.all
    types = ended(scene.client("vfolder", "list-allowed-types"))
    assert "user" in types.all, types.all
    assert "group" in types.all, types.all


def check_vfolder_list(scene: Scene) -> None:
    with folder(scene, "conf-list"):
        said = ended(scene.client("vfolder", "list"))
        [row] = [line for line in said.out.splitlines() if "conf-list" in line]
        starts = [said.out.splitlines()[0].index(title) for title in ("Name", "Host", "Status")]
        assert [row[start:].split()[0] for start in starts] == ["conf-list", HOST, "ready"], said.all
        told = json.loads(ended(scene.client("--output", "json", "vfolder", "list")).out)
        assert [(one["name"], one["host"]) for one in told["items"]] == [("conf-list", HOST)]
        assert "conf-list" in ended(scene.client("vfolder", "list-own")).out
        for other in ("list-invited", "list-project"):
            assert "conf-list" not in ended(scene.client("vfolder", other)).out


def check_vfolder_info(scene: Scene) -> None:
    with folder(scene, "conf-finfo") as made:
        made.mkdir("d")
        said = ended(scene.client("vfolder", "info", "conf-finfo"))
        for fact in (f'"conf-finfo" (ID: {made.info()["id"]})', "- Owner: True", "- Number of files: 0", "Type: user"):
            assert fact in said.out, (fact, said.all)


def check_vfolder_rename(scene: Scene) -> None:
    with folder(scene, "conf-before"):
        try:
            ended(scene.client("vfolder", "rename", "conf-before", "conf-after"))
            assert "conf-after" in names(scene)
            assert "conf-before" not in names(scene)
        finally:
            remove(scene, "conf-after")


def check_vfolder_delete(scene: Scene) -> None:
    with folder(scene, "conf-delete"):
        said = ended(scene.client("vfolder", "delete", "conf-delete"))
        assert "Deleted." in said.all, said.all
        assert "conf-delete" not in names(scene)
        assert "conf-delete" not in ended(scene.client("vfolder", "list")).out
        missing = ended(scene.client("vfolder", "delete", "conf-never-was"))
        assert "404" in missing.all, missing.all


def check_vfolder_options(scene: Scene) -> None:
    with folder(scene, "conf-options") as made:
        ended(scene.client("vfolder", "update-options", "--set-cloneable", "true", "conf-options"))
        assert made.info()["cloneable"] is True


def check_vfolder_mkdir(scene: Scene) -> None:
    with folder(scene, "conf-mkdir") as made:
        ended(scene.client("vfolder", "mkdir", "-p", "conf-mkdir", "a/b"))
        assert [one["name"] for one in made.list_files("a")] == ["b"]
        again = ended(scene.client("vfolder", "mkdir", "conf-mkdir", "a"))
        assert "400" in again.all, again.all
        ended(scene.client("vfolder", "mkdir", "-e", "conf-mkdir", "a"))


def check_vfolder_upload(scene: Scene) -> None:
    """More than one chunk, a file of no bytes, and a tree."""
    content = os.urandom(5_000_000)
    (scene.client.folder / "up.bin").write_bytes(content)
    (scene.client.folder / "zero.bin").touch()
    (scene.client.folder / "d é/e").mkdir(parents=True)
    (scene.client.folder / "d é/e/deep 100%.txt").write_text("deep")
    with folder(scene, "conf-fup") as made:
        said = ended(scene.client("vfolder", "upload", "--chunk-size", "2m", "conf-fup", "up.bin", "zero.bin"))
        tree = ended(scene.client("vfolder", "upload", "-r", "conf-fup", "d é"))
        sizes = {one["name"]: one["size"] for one in made.list_files() if one["type"] == "FILE"}
        assert sizes == {"up.bin": 5_000_000, "zero.bin": 0}, said.all
        made.download(["up.bin", "d é/e/deep 100%.txt"], basedir=scene.client.folder / "state")
        assert (scene.client.folder / "state/up.bin").read_bytes() == content
        assert (scene.client.folder / "state/d é/e/deep 100%.txt").read_text() == "deep", tree.all


def check_vfolder_download(scene: Scene) -> None:
    content = os.urandom(3_000_000)
    source = scene.client.folder / "source"
    source.mkdir()
    (source / "down.bin").write_bytes(content)
    with folder(scene, "conf-fdown") as made:
        made.upload(["down.bin"], basedir=source)
        said = ended(scene.client("vfolder", "download", "conf-fdown", "down.bin"))
        assert (scene.client.folder / "down.bin").is_file(), said.all
        assert (scene.client.folder / "down.bin").read_bytes() == content, said.all
        missing = ended(scene.client("vfolder", "download", "conf-fdown", "gone.bin"))
        assert "404" in missing.all, missing.all


def check_vfolder_files(scene: Scene) -> None:
    """ls, rename-file, mv and rm."""
    (scene.client.folder / "one.txt").write_text("1" * 1500)
    with folder(scene, "conf-files") as made:
        made.mkdir("sub")
        made.upload(["one.txt"], basedir=scene.client.folder)
        listed = ended(scene.client("vfolder", "ls", "conf-files"))
        rows = {line.split()[0]: line.split() for line in listed.out.splitlines() if "one.txt" in line or "sub" in line}
        assert (rows["one.txt"][1], rows["one.txt"][-1][:3]) == ("1500", "-rw"), listed.all
        assert rows["sub"][-1].startswith("d"), listed.all
        ended(scene.client("vfolder", "rename-file", "conf-files", "one.txt", "two.txt"))
        ended(scene.client("vfolder", "mv", "conf-files", "two.txt", "sub/three.txt"))
        assert [one["name"] for one in made.list_files("sub")] == ["three.txt"]
        refused = ended(scene.client("vfolder", "rm", "conf-files", "sub", input_="y\n"))
        assert "400" in refused.all, refused.all
        said = ended(scene.client("vfolder", "rm", "-r", "conf-files", "sub", input_="y\n"))
        assert made.list_files() == [], said.all


def check_vfolder_invite(scene: Scene) -> None:
    """To somebody, from somebody, and leaving again."""
    assert scene.admin is not None
    with folder(scene, "conf-mine"), folder(scene, "conf-theirs", by=scene.admin) as theirs:
        said = ended(scene.client("vfolder", "invite", "-p", "ro", "conf-mine", "admin@local"))
        assert "- admin@local" in said.all, said.all
        assert [one["perm"] for one in scene.admin.VFolder.invitations()] == ["ro"]
        theirs.invite("rw", ["user@local"])
        accepted = ended(scene.client("vfolder", "invitations", input_="1\na\n"))
        assert "You can now access vfolder conf-theirs" in accepted.all, accepted.all
        assert "conf-theirs" in names(scene)
        assert "conf-theirs" in ended(scene.client("vfolder", "list-invited")).out
        ended(scene.client("vfolder", "leave", "conf-theirs"))
        assert "conf-theirs" not in names(scene)
        assert "No invitations." in ended(scene.client("vfolder", "invitations")).all


def check_vfolder_clone(scene: Scene) -> None:
    with folder(scene, "conf-source") as made:
        made.mkdir("inside")
        made.update_options(cloneable=True)
        try:
            said = ended(scene.client("vfolder", "clone", "conf-source", "conf-copy", HOST))
            assert "is complete" in said.all, said.all
            assert [one["name"] for one in scene.server.VFolder("conf-copy").list_files()] == ["inside"]
        finally:
            remove(scene, "conf-copy")


def check_vfolder_mount(scene: Scene) -> None:
    """A session of the published client writes what its next command fetches."""
    with folder(scene, "conf-mount") as made:
        try:
            code = "open('/home/work/conf-mount/result', 'w').write('written')"
            options = [f for slot, amount in RESOURCES.items() for f in ("-r", f"{slot}={amount}")]
            said = ended(
                scene.client("run", "--rm", "-t", "conf-mnt", "-m", "conf-mount", *options, "-c", code, "python")
            )
            assert [one["name"] for one in made.list_files()] == ["result"], said.all
            until(lambda: "conf-mnt" not in scene.living(), "--rm removed the session")
        finally:
            scene.remove("conf-mnt")
