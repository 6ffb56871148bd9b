"""The checks can fail: each fault that breaks the published client is noticed by the check of the command it breaks."""

from pathlib import Path
from typing import Any

import pytest

from ai.backend.client.session import Session
from tests.conformance import admin_checks, image_checks
from tests.conformance.broken import Answer, Breakage, broken_server
from tests.conformance.catalogue import run_check
from tests.conformance.checks import Scene
from tests.conformance.folder_admin_checks import COVERED
from tests.conformance.published import Published

pytestmark = pytest.mark.timeout(180)
_HANG_S = 15.0


def _rename(old: str, new: str) -> Any:
    def spoil(answer: Answer) -> None:
        value = answer.json()
        value[new] = value.pop(old)
        answer.set_json(value)

    return spoil


def _as_text(answer: Answer) -> None:
    answer.content_type = "text/plain"


def _reverse_items(answer: Answer) -> None:
    value = answer.json()
    for root in value["data"].values():
        if isinstance(root, dict) and "items" in root:
            root["items"] = [dict(reversed(item.items())) for item in root["items"]]
    answer.set_json(value)


def _nothing_listed(answer: Answer) -> None:
    value = answer.json()
    for root in value["data"].values():
        if isinstance(root, dict) and "items" in root:
            root.update(items=[], total_count=0)
    answer.set_json(value)


def _without_kinds(answer: Answer) -> None:
    value = answer.json()
    value["items"] = [{"name": item["name"]} for item in value["items"]]
    answer.set_json(value)


def _without_containers(answer: Answer) -> None:
    answer.set_json([{**group, "c_infos": []} for group in answer.json()])


def _refuse_graphql(answer: Answer) -> None:
    answer.status = 400
    answer.set_json({"errors": [{"message": "no"}]})


def _unwrap_files(answer: Answer) -> None:
    value = answer.json()
    value["files"] = [{"name": "one.txt"}]
    answer.set_json(value)


def _spoil_archive(answer: Answer) -> None:
    answer.body = answer.body.replace(b"ustar", b"USTAR").replace(b"down.bin", b"down.bad")


def _spoil_archive_of_key(answer: Answer) -> None:
    answer.body = answer.body.replace(b"PRIVATE KEY", b"PUBLIC KEYS")


def _services_renamed(answer: Answer) -> None:
    answer.set_json([{**service, "name": f"{service['name']}-x"} for service in answer.json()])


def _without(key: str) -> Any:
    def message(told: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in told.items() if name != key}

    return message


def _twice(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "console": [item for item in told.get("console") or [] for _ in range(2)]}


def _no_waiting(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "status": "finished"} if told.get("status") == "waiting-input" else told


def _unparsable_data(line: bytes) -> bytes:
    return b"data: not json\n" if line.startswith(b"data:") else line


def _no_closing(line: bytes) -> bytes:
    return line.replace(b"server_close", b"server_pause")


def _wrong_reason(line: bytes) -> bytes:
    return line.replace(b"user-requested", b"")


def _no_message(_told: dict[str, Any]) -> None:
    return None


def _undone(root: str) -> Any:
    """The mutation is answered as refused."""

    def spoil(answer: Answer) -> None:
        value = answer.json()
        if root in (value.get("data") or {}):
            value["data"][root]["ok"] = False
        answer.set_json(value)

    return spoil


def _lost(root: str) -> Any:
    """What was asked for is not shown."""

    def spoil(answer: Answer) -> None:
        value = answer.json()
        if root in (value.get("data") or {}):
            value["data"][root] = []
        answer.set_json(value)

    return spoil


def _without_secret(answer: Answer) -> None:
    value = answer.json()
    for root in (value.get("data") or {}).values():
        if isinstance(root, dict) and isinstance(root.get("keypair"), dict):
            root["keypair"]["secret_key"] = ""
    answer.set_json(value)


def _no_template_id(answer: Answer) -> None:
    answer.set_json([{"user": one["user"]} for one in answer.json()])


def _no_owners(answer: Answer) -> None:
    answer.set_json([{**one, "is_owner": False} for one in answer.json()])


def _no_contents(answer: Answer) -> None:
    told = answer.json()
    answer.set_json([{**one, "data": "-"} for one in told] if isinstance(told, list) else {**told, "data": "-"})


_STREAM = "/stream/session/.*"
BREAKAGES = [
    Breakage("version is malformed", "config", "/", spoil=lambda answer: answer.set_json({"version": "7"})),
    Breakage("another version", "config", "/", spoil=lambda a: a.set_json({"version": "v9.20990101", "manager": "x"})),
    Breakage("no session id", "start", "/session", "POST", spoil=_rename("sessionId", "sessId")),
    Breakage("a reply without a media type of JSON", "start", "/session", "POST", spoil=_as_text),
    Breakage("a creation that never happens", "start", "/session", "POST", swallow=(201, '{"sessionId": "x"}')),
    Breakage("keys in another order", "ps", "/admin/gql", spoil=_reverse_items),
    Breakage("GraphQL errors with status 400", "ps", "/admin/gql", spoil=_refuse_graphql),
    Breakage("GraphQL errors with status 400", "info", "/admin/gql", spoil=_refuse_graphql),
    Breakage("a result without status", "run_code", _STREAM, message=_without("status")),
    Breakage("a result without console", "run_code", _STREAM, message=_without("console")),
    Breakage("a stream that says nothing", "run_file", _STREAM, message=_no_message),
    Breakage("output that comes twice", "run_long", _STREAM, message=_twice),
    Breakage("a wait for input told as the end", "run_input", _STREAM, message=_no_waiting),
    Breakage("an upload that is thrown away", "upload", "/session/.*/upload", swallow=(204, "")),
    Breakage("an archive that is none", "download", "/session/.*/download", spoil=_spoil_archive),
    Breakage("a list of files that is no text", "ls", "/session/.*/files", spoil=_unwrap_files),
    Breakage("logs under another name", "logs", "/session/.*/logs", spoil=_rename("result", "logs")),
    Breakage("events that are not JSON", "events", "/events/session", line=_unparsable_data),
    Breakage("a stream of events without an end", "events", "/events/session", line=_no_closing),
    Breakage("events without their reason", "events", "/events/session", line=_wrong_reason),
    Breakage("a restart that never happens", "restart", "/session/[^/]*", "PATCH", swallow=(204, "")),
    Breakage("a rename that never happens", "rename", "/session/.*/rename", swallow=(204, "")),
    Breakage("a folder that is never made", "vfolder_create", "/folders", "POST", swallow=(201, '{"name": "x"}')),
    Breakage("a folder list of another shape", "vfolder_list", "/admin/gql", spoil=_reverse_items),
    Breakage("hosts without a default", "vfolder_hosts", "/folders/_/hosts", spoil=_rename("default", "main")),
    Breakage("a folder without its type", "vfolder_info", "/folders/[^/]*", "GET", spoil=_rename("type", "kind")),
    Breakage("a deletion that never happens", "vfolder_delete", "/folders/[^/]*", "DELETE", swallow=(204, "")),
    Breakage("a ticket without its token", "vfolder_upload", ".*/request-upload", spoil=_rename("token", "jwt")),
    Breakage("a ticket without its address", "vfolder_download", ".*/request-download", spoil=_rename("url", "uri")),
    Breakage("files that are no text", "vfolder_files", "/folders/.*/files", spoil=_unwrap_files),
    Breakage("a clone without its task", "vfolder_clone", "/folders/.*/clone", spoil=_as_text),
    Breakage(
        "a share that never happens", "vfolder_share", "/folders/.*/share", swallow=(201, '{"shared_emails": []}')
    ),
    Breakage("a model list without its filter", "model", "/admin/gql", spoil=_nothing_listed),
    Breakage("items of a directory without kinds", "model", "/folders/.*/files", spoil=_without_kinds),
    Breakage("mounts under another name", "admin_vfolder_list", ".*/mounts", spoil=_rename("manager", "node")),
    Breakage("an owner who never changes", "admin_vfolder_owner", ".*/change-ownership", swallow=(200, "{}")),
    Breakage("shares under another name", "admin_vfolder_shares", ".*/shared", "GET", spoil=_rename("shared", "all")),
    Breakage("a change of a share that is lost", "admin_vfolder_shares", ".*/shared", "POST", swallow=(200, "{}")),
    Breakage("volumes in another order of keys", "admin_storage", "/admin/gql", spoil=_nothing_listed),
    Breakage("mutations that change nothing", "admin_host_permissions", "/admin/gql", spoil=_refuse_graphql),
    Breakage("a list of volumes without a count", "admin_storage", "/admin/gql", spoil=_refuse_graphql),
    Breakage("no folder in any list", "vfolder_share", "/admin/gql", spoil=_nothing_listed),
    Breakage("a leave that never happens", "vfolder_invite", "/folders/.*/leave", swallow=(200, "{}")),
    Breakage("an option that is not kept", "vfolder_options", ".*/update-options", swallow=(201, "{}")),
    Breakage("a directory that is never made", "vfolder_mkdir", "/folders/.*/mkdir", swallow=(201, "{}")),
    Breakage("a folder that keeps its name", "vfolder_rename", "/folders/[^/]*/rename", swallow=(201, "{}")),
    Breakage("users that are not listed", "admin_users", "/admin/gql", spoil=_nothing_listed),
    Breakage("a secret that is not told", "admin_users", "/admin/gql", spoil=_without_secret),
    Breakage("a purge that is refused", "admin_users", "/admin/gql", spoil=_undone("purge_user")),
    Breakage("domains that are not listed", "admin_tenants", "/admin/gql", spoil=_lost("domains")),
    Breakage("members that do not join", "admin_tenants", "/admin/gql", spoil=_undone("modify_group")),
    Breakage("a scheduler that is not set", "admin_limits", "/admin/gql", spoil=_undone("modify_scaling_group")),
    Breakage(
        "resource groups under another name", "admin_limits", "/scaling-groups", spoil=_rename("scaling_groups", "x")
    ),
    Breakage("agents that are not listed", "admin_agents", "/admin/gql", spoil=_nothing_listed),
    Breakage("a report without its containers", "admin_usage", "/resource/usage/month", spoil=_without_containers),
    Breakage("a freeze that is lost", "admin_state", "/manager/status", "PUT", swallow=(204, "")),
    Breakage("an announcement nobody hears", "admin_state", "/manager/announcement", "POST", swallow=(204, "")),
    Breakage("services under another name", "app", "/stream/.*/apps", spoil=_services_renamed),
    Breakage("a tunnel that changes what it carries", "app", "/stream/.*/tcpproxy", binary=b"HTTP/1.1 200 OK\r\n\r\n"),
    Breakage("a key of no use", "ssh", "/session/.*/download", spoil=_spoil_archive_of_key),
    Breakage("a key that is none", "scp", "/session/.*/download", spoil=_spoil_archive_of_key),
    Breakage("a task without an id", "admin_image_rescan", "/admin/gql", spoil=_undone("rescan_images")),
    Breakage("images that are not listed", "admin_image_rescan", "/admin/gql", spoil=_lost("images")),
    Breakage("progress that is not told", "admin_image_rescan", "/events/background-task", swallow=(404, "{}")),
    Breakage("an alias that is refused", "admin_image_alias", "/admin/gql", spoil=_undone("alias_image")),
    Breakage("an alias that stays", "admin_image_alias", "/admin/gql", spoil=_undone("dealias_image")),
    Breakage("a commit that never happens", "session_commit", "/session/.*/commit", swallow=(201, "{}")),
    Breakage("a template without an id", "sesstpl", "/template/session", "POST", spoil=_no_template_id),
    Breakage("templates without owners", "sesstpl", "/template/session", "GET", spoil=_no_owners),
    Breakage("a change of a template that is lost", "sesstpl", "/template/.*", "PUT", swallow=(200, '{"success": 1}')),
    Breakage("a session of no template", "create_from_template", ".*-from-template", swallow=(201, "{}")),
    Breakage("a dotfile that is never kept", "dotfile", "/user-config/dotfiles", "POST", swallow=(200, "{}")),
    Breakage("a dotfile without its contents", "dotfile", "/user-config/dotfiles", "GET", spoil=_no_contents),
    Breakage("presets without limits", "check_presets", ".*/check-presets", spoil=_rename("keypair_limits", "limits")),
    Breakage("a removal that never happens", "rm", "/session/[^/]*", "DELETE", swallow=(200, '{"stats": {}}')),
]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: f"{one.check}: {one.name}")
def test_a_broken_server_fails_its_check(
    breakage: Breakage, published_python: Path, keys: dict[str, str], server: Session, admin: Session, tmp_path: Path
) -> None:
    with broken_server(keys["BACKEND_ENDPOINT"], breakage) as endpoint:
        scene = Scene(Published(published_python, endpoint, keys, tmp_path, timeout_s=_HANG_S), server, admin)
        with pytest.raises(AssertionError):
            run_check(breakage.check, scene)


@pytest.mark.parametrize("name", ["ps", "run_code", "upload", "download", "events"])
def test_the_proxy_itself_breaks_nothing(
    name: str, published_python: Path, keys: dict[str, str], server: Session, tmp_path: Path
) -> None:
    with broken_server(keys["BACKEND_ENDPOINT"], None) as endpoint:
        run_check(name, Scene(Published(published_python, endpoint, keys, tmp_path), server))


def test_every_check_of_folders_and_administration_has_been_seen_to_fail() -> None:
    assert {*COVERED.values(), *admin_checks.COVERED, *image_checks.COVERED} <= {
        breakage.check for breakage in BREAKAGES
    }
