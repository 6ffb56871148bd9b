"""What administrators do with folders and storage by the published client, judged as in
:mod:`tests.conformance.checks`.

``COVERED`` and ``NOT_COVERED`` together are the client's whole trees of folders, models and volumes.
"""

from __future__ import annotations

import json

from ai.backend.common.structs import replace
from tests.conformance.checks import Scene, ended
from tests.conformance.folder_checks import HOST, folder, names, remove
from tests.conformance.published import Published

NOT_COVERED = {
    "vfolder request-download": "the client fails before it asks the server (wire contract, section 4)",
    "vfolder cp": "the client fails before it asks the server (wire contract, section 4)",
    "model upload": "the client crashes after its first request (wire contract, section 4)",
    "model download": "the client crashes after its first request (wire contract, section 4)",
    "admin vfolder get-fstab-contents": "refused by this server: file systems are the node's (decision 0090)",
    "admin vfolder mount-host": "refused by this server: file systems are the node's (decision 0090)",
    "admin vfolder umount-host": "refused by this server: file systems are the node's (decision 0090)",
    "admin vfolder perf-metric": "501 where a volume has no disk of its own to measure: only its refusal is checked",
}
COVERED = {
    "vfolder create": "vfolder_create",
    "vfolder list-hosts": "vfolder_hosts",
    "vfolder list-allowed-types": "vfolder_hosts",
    "vfolder list": "vfolder_list",
    "vfolder list-own": "vfolder_list",
    "vfolder list-invited": "vfolder_invite",
    "vfolder list-project": "vfolder_share",
    "vfolder info": "vfolder_info",
    "vfolder rename": "vfolder_rename",
    "vfolder delete": "vfolder_delete",
    "vfolder update-options": "vfolder_options",
    "vfolder mkdir": "vfolder_mkdir",
    "vfolder upload": "vfolder_upload",
    "vfolder download": "vfolder_download",
    "vfolder ls": "vfolder_files",
    "vfolder rename-file": "vfolder_files",
    "vfolder mv": "vfolder_files",
    "vfolder rm": "vfolder_files",
    "vfolder invite": "vfolder_invite",
    "vfolder invitations": "vfolder_invite",
    "vfolder leave": "vfolder_invite",
    "vfolder clone": "vfolder_clone",
    "vfolder share": "vfolder_share",
    "vfolder unshare": "vfolder_share",
    "model create": "model",
    "model list": "model",
    "model info": "model",
    "model rm": "model",
    "admin vfolder list": "admin_vfolder_list",
    "admin vfolder list-hosts": "admin_vfolder_list",
    "admin vfolder list-mounts": "admin_vfolder_list",
    "admin vfolder change-vfolder-ownership": "admin_vfolder_owner",
    "admin vfolder list-shared-vfolders": "admin_vfolder_shares",
    "admin vfolder shared-vfolder-info": "admin_vfolder_shares",
    "admin vfolder update-shared-vf-permission": "admin_vfolder_shares",
    "admin vfolder remove-shared-vf-permission": "admin_vfolder_shares",
    "admin storage list": "admin_storage",
    "admin storage info": "admin_storage",
    "admin permission list": "admin_host_permissions",
}


def boss_of(scene: Scene) -> Published:
    """The published client with the administrator's keys."""
    assert scene.admin is not None
    config = scene.admin.config
    keys = {
        "BACKEND_ENDPOINT": scene.client.endpoint,
        "BACKEND_ACCESS_KEY": config.access_key,
        "BACKEND_SECRET_KEY": config.secret_key,
    }
    return replace(scene.client, keys=keys)


def check_vfolder_share(scene: Scene) -> None:
    """A group's folder, and what single members may do with it."""
    assert scene.admin is not None
    boss = boss_of(scene)
    try:
        made = ended(boss("vfolder", "create", "-g", "default", "-p", "ro", "conf-team", HOST))
        assert "is created" in made.all, made.all
        assert "conf-team" in ended(scene.client("vfolder", "list-project")).out
        refused = ended(scene.client("vfolder", "mkdir", "conf-team", "mine"))
        assert "403" in refused.all, refused.all
        shared = ended(boss("vfolder", "share", "-p", "rw", "conf-team", "user@local"))
        assert "- user@local" in shared.all, shared.all
        ended(scene.client("vfolder", "mkdir", "conf-team", "mine"))
        assert [one["name"] for one in scene.server.VFolder("conf-team").list_files()] == ["mine"]
        ended(boss("vfolder", "unshare", "conf-team", "user@local"))
        assert scene.server.VFolder("conf-team").info()["permission"] == "ro"
    finally:
        remove(scene, "conf-team", by=scene.admin)


def check_model(scene: Scene) -> None:
    try:
        made = ended(scene.client("model", "create", "conf-model", HOST))
        assert "Created the model" in made.all, made.all
        with folder(scene, "conf-nomodel"):
            listed = ended(scene.client("model", "list")).out
            assert "conf-model" in listed, listed
            assert "conf-nomodel" not in listed, listed
        scene.server.VFolder("conf-model").mkdir("versions/7")
        told = ended(scene.client("model", "info", "conf-model"))
        assert "conf-model" in told.out, told.all
        assert "7" in told.out, told.all
        gone = ended(scene.client("model", "rm", "conf-model"))
        assert "Model deleted" in gone.all, gone.all
        assert "conf-model" not in names(scene)
    finally:
        remove(scene, "conf-model")


def check_admin_vfolder_list(scene: Scene) -> None:
    boss = boss_of(scene)
    with folder(scene, "conf-seen"):
        assert "conf-seen" in ended(boss("admin", "vfolder", "list")).out
        hosts = ended(boss("admin", "vfolder", "list-hosts"))
        assert f"Mounted hosts: {HOST}" in hosts.out, hosts.all
        mounts = ended(boss("admin", "vfolder", "list-mounts"))
        assert "success : True" in mounts.out, mounts.all
        assert "volume1" in mounts.out, mounts.all
        refused = ended(scene.client("admin", "vfolder", "list-hosts"))
        assert "403" in refused.all, refused.all


def check_admin_vfolder_owner(scene: Scene) -> None:
    assert scene.admin is not None
    boss = boss_of(scene)
    with folder(scene, "conf-owned") as made:
        folder_id = made.info()["id"]
        said = ended(boss("admin", "vfolder", "change-vfolder-ownership", folder_id, "admin@local"))
        assert "goes to User:admin@local" in said.all, said.all
        assert "conf-owned" not in names(scene)
        assert scene.admin.VFolder("conf-owned").info()["is_owner"] is True
        remove(scene, "conf-owned", by=scene.admin)


def check_admin_vfolder_shares(scene: Scene) -> None:
    """The client's own listing is of folders of the one who asks, and the others take an id."""
    assert scene.admin is not None
    boss = boss_of(scene)
    with folder(scene, "conf-shares", by=scene.admin) as made:
        made.invite("ro", ["user@local"])
        [invitation] = [one for one in scene.server.VFolder.invitations() if one["vfolder_name"] == "conf-shares"]
        scene.server.VFolder.accept_invitation(invitation["id"])
        folder_id = made.info()["id"]
        listed = ended(boss("admin", "vfolder", "list-shared-vfolders"))
        assert f'"conf-shares" (ID: {folder_id})' in listed.out, listed.all
        told = ended(boss("admin", "vfolder", "shared-vfolder-info", folder_id))
        assert "- Permission: ro" in told.out, told.all
        user = scene.server.Admin.query("{ user { uuid } }")["user"]["uuid"]
        ended(boss("admin", "vfolder", "update-shared-vf-permission", "-p", "rw", folder_id, user))
        assert scene.server.VFolder("conf-shares").info()["permission"] == "rw"
        ended(boss("admin", "vfolder", "remove-shared-vf-permission", folder_id, user))
        assert "conf-shares" not in names(scene)


def check_admin_storage(scene: Scene) -> None:
    boss = boss_of(scene)
    listed = ended(boss("admin", "storage", "list"))
    assert HOST in listed.out, listed.all
    told = json.loads(ended(boss("--output", "json", "admin", "storage", "list")).out)
    assert [one["id"] for one in told["items"]] == [HOST], told
    info = ended(boss("admin", "storage", "info", HOST))
    assert "vfs" in info.out, info.all
    refused = ended(scene.client("admin", "storage", "list"))
    assert HOST not in refused.out, refused.all


def check_admin_host_permissions(scene: Scene) -> None:
    """The permissions by name, and each object that sets them."""
    assert scene.admin is not None
    boss = boss_of(scene)
    listed = ended(boss("admin", "permission", "list"))
    for permission in ("create-vfolder", "mount-in-session", "set-user-specific-permission"):
        assert permission in listed.out, listed.all
    [group] = [g for g in scene.server.Admin.query("{ groups { id name } }")["groups"] if g["name"] == "default"]
    hosts = json.dumps({"conf:volume": ["upload-file"]})
    policy = "keypair-resource-policy"
    try:
        made = ended(boss("admin", policy, "add", "conf-policy", "--vfolder-host-perms", hosts))
        assert "conf-policy" in made.all, made.all
        ended(boss("admin", "group", "update", group["id"], "--vfolder-host-perms", hosts))
        for root in ('keypair_resource_policy(name: "conf-policy")', f'group(id: "{group["id"]}")'):
            found = scene.admin.Admin.query(f"{{ found: {root} {{ allowed_vfolder_hosts }} }}")["found"]
            assert json.loads(found["allowed_vfolder_hosts"]) == json.loads(hosts), root
        changed = json.dumps({"conf:volume": ["upload-file", "download-file"]})
        ended(boss("admin", policy, "update", "conf-policy", "--vfolder-host-perms", changed))
        found = scene.admin.Admin.query(
            '{ found: keypair_resource_policy(name: "conf-policy") { allowed_vfolder_hosts } }'
        )["found"]
        assert json.loads(found["allowed_vfolder_hosts"]) == json.loads(changed)
        wrong = ended(boss("admin", "domain", "update", "default", "--vfolder-host-perms", '{"a:b": ["fly"]}'))
        assert "fly" in wrong.all, wrong.all
    finally:
        ended(boss("admin", policy, "delete", "conf-policy", input_="y\n"))
        scene.admin.Group.update(group["id"], allowed_vfolder_hosts={})
    policies = scene.admin.Admin.query("{ keypair_resource_policies { name } }")["keypair_resource_policies"]
    assert "conf-policy" not in [one["name"] for one in policies]
