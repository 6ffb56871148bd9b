"""Images by the published client, judged as in :mod:`tests.conformance.checks`; a real registry is scanned."""

from __future__ import annotations

import json
from urllib.parse import quote
from uuid import uuid4

from tests.conformance.checks import Scene, ended
from tests.conformance.folder_admin_checks import boss_of
from tests.support.docker_registry import running_registry

COVERED = ("admin_image_rescan", "admin_image_alias", "session_commit")
_PREFIX = "config/docker/registry"


def check_admin_image_rescan(scene: Scene) -> None:
    assert scene.admin is not None
    boss, images = boss_of(scene), scene.admin.Image
    with running_registry(scene.client.folder / f"registry-{uuid4().hex[:8]}") as registry:
        digest = registry.put_image("lab/tool", "1", labels={"ai.backend.resource.min.cpu": "1"})
        scene.admin.EtcdConfig.set(f"{_PREFIX}/{quote(registry.name, safe='')}", {"": registry.url, "type": "docker"})
        try:
            said = ended(boss("admin", "image", "rescan", "-r", registry.name))
            assert "Finished registry scanning" in said.all, said.all
            assert "Error" not in said.all, said.all
            name = f"{registry.name}/lab/tool:1"
            assert any(one["registry"] == registry.name and one["tag"] == "1" for one in images.list()), said.all
            listed = ended(boss("admin", "image", "list"))
            (row,) = [line.split() for line in listed.out.splitlines() if "lab/tool" in line]
            assert row[:5] == ["lab/tool", registry.name, "x86_64", "1", digest], listed.out
            as_json = json.loads(ended(boss("--output", "json", "admin", "image", "list")).out)
            assert digest in {one["digest"] for one in as_json["items"]}, as_json
            refused = ended(scene.client("admin", "image", "rescan"))
            assert "superadmins" in refused.all, refused.all
            unknown = ended(boss("admin", "image", "rescan", "-r", "nowhere.test"))
            assert "Failed to begin registry scanning" in unknown.all, unknown.all
            assert name.startswith(registry.name)
        finally:
            images.clear_images(registry.name)
            scene.admin.EtcdConfig.delete(f"{_PREFIX}/{quote(registry.name, safe='')}", prefix=True)


def check_admin_image_alias(scene: Scene) -> None:
    assert scene.admin is not None
    boss, images = boss_of(scene), scene.admin.Image
    target = next(one for one in images.list(installed=True) if "python" in one["name"])
    name = f"{target['name']}:{target['tag']}"
    alias = f"conf-{uuid4().hex[:8]}"
    try:
        made = ended(boss("admin", "image", "alias", alias, name))
        assert f"An alias has created: {alias} -> {name}" in made.all, made.all
        assert alias in {one for image in images.list() for one in image["aliases"]}
        bad = ended(boss("admin", "image", "alias", f"{alias}-2", "nothing:1"))
        assert "Aliasing has failed" in bad.all, bad.all
        gone = ended(boss("admin", "image", "dealias", alias))
        assert f"The alias has been removed: {alias}" in gone.all, gone.all
        assert alias not in {one for image in images.list() for one in image["aliases"]}
    finally:
        boss("admin", "image", "dealias", alias)


def check_session_commit(scene: Scene) -> None:
    """Sessions of process trees have no layers, and the client says so; nor has one that is not there."""
    with scene.session("conf-commit"):
        said = ended(scene.client("session", "commit", "conf-commit"))
        assert "Request to commit" not in said.all, said.all
        assert "makes no images of its sessions" in said.all, said.all
        missing = ended(scene.client("session", "commit", "conf-none"))
        assert "Request to commit" not in missing.all, missing.all
