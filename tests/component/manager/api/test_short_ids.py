"""Commands take the beginnings of ids that lists show."""

from __future__ import annotations

from pathlib import Path

from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.component.manager.api.test_session_defaults_api import TEMPLATE


async def test_every_list_shows_ids_that_commands_take(api: Api, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    (template,) = (await shell.own("sesstpl", "create", "-f", str(tmp_path / "t.yaml")))["ids"]
    folder = (await shell.own("vfolder", "create", "data"))["id"]
    await shell("group", "add", "default", "team")
    [group] = [one["id"] for one in await shell("group", "list") if one["name"] == "team"]
    session = (await shell.own("start", "-t", "train-1", "-r", "cpu=1", "-r", "mem=64m", "python"))["id"]
    for full, listing in (
        (template, ("sesstpl", "list")),
        (folder, ("vfolder", "list")),
        (group, ("admin", "group", "list")),
        (session, ("ps",)),
    ):
        listed = await shell.text(*listing, inside=())
        assert full[:8] in listed
        assert full not in listed
        assert full in await shell.text(*listing, "--wide", inside=())
    assert "sample" in (await shell.own("sesstpl", "get", template[:8]))["text"]
    assert (await shell.own("vfolder", "info", folder[:8]))["name"] == "data"
    assert (await shell("group", "info", group[:8]))["name"] == "team"
    assert (await shell.own("info", session[:8]))["name"] == "train-1"
    await shell.own("rm", session[:8])
    ended = await shell.text("ps", "--dead", inside=())
    assert session[:8] in ended
    assert (await shell.own("info", session[:8]))["status"] == "TERMINATED"
    assert "RUNNING" in await shell.text("status-history", session[:8], inside=())
    await shell.own("vfolder", "delete", folder[:8])
    await shell.own("vfolder", "purge", folder[:8], "-y")


async def test_a_reference_that_means_several_names_them(api: Api, shell: Shell) -> None:
    for name in ("train-1", "train-2"):
        await shell.own("start", "-t", name, "-r", "cpu=1", "-r", "mem=64m", "python")
    for command in (("info",), ("rm",), ("logs",)):
        await shell.own(*command, "train", fails="train-1 (")
        await shell.own(*command, "train", fails="train-2 (")


async def test_what_cannot_be_undone_asks(api: Api, shell: Shell) -> None:
    await shell("domain", "add", "lab")
    await shell("domain", "purge", "lab", fails="use -y")
    await shell("domain", "info", "lab")
    await shell("domain", "purge", "lab", "-y")
    await shell("domain", "info", "lab", fails="no such domain")
