"""Files of the home through the channel, also while the user's code plays tricks with it."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver

ODD_NAMES = [
    "-rf",
    "a\nb",
    "quote'\"`$(x)",
    " space ",
    "\u00e9\U0001f600",
    "\udcff\udc80raw",
    "a" * 255,
    "\\",
    "*",
    "...",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_make_the_round_trip(runner: Driver, home: Path, name: str) -> None:
    data = os.urandom(1000)
    runner.upload(f"sub/{name}", data)
    assert (home / "sub" / name).read_bytes() == data
    listed = runner.data("file-list", path="sub")
    assert [(e["name"], e["size"], e["type"]) for e in listed["entries"]] == [(name, 1000, "file")]
    (archive,) = runner.download(f"sub/{name}")
    with archive:
        (member,) = archive.getmembers()
        assert member.name == name
        file = archive.extractfile(member)
        assert file is not None
        assert file.read() == data


def test_a_file_in_pieces_appears_whole(runner: Driver, home: Path) -> None:
    pieces = [os.urandom(300_000) for _ in range(4)]
    offset = 0
    (home / "big").write_text("before")
    (home / "big").chmod(0o750)
    for index, piece in enumerate(pieces):
        assert (home / "big").read_text() == "before"
        data = base64.b64encode(piece).decode()
        runner.data("file-write", path="big", data=data, offset=offset, last=index == 3)
        offset += len(piece)
    assert (home / "big").read_bytes() == b"".join(pieces)
    assert (home / "big").stat().st_mode & 0o777 == 0o750
    assert os.listdir(home) in (["big", ".output"], [".output", "big"])


def test_pieces_must_follow_each_other(runner: Driver, home: Path) -> None:
    def piece(offset: int, last: bool = False) -> dict[str, object]:
        return {"path": "f", "data": base64.b64encode(b"abc").decode(), "offset": offset, "last": last}

    assert runner.error("file-write", **piece(3)) == "invalid"
    runner.data("file-write", **piece(0))
    assert runner.error("file-write", **piece(7)) == "invalid"
    runner.data("file-write", **piece(3))
    runner.data("file-write", **piece(0))  # begins anew
    runner.data("file-write", **piece(3, last=True))
    assert (home / "f").read_text() == "abcabc"
    assert runner.error("file-write", **piece(-1)) == "invalid"
    assert runner.error("file-write", **piece(1 << 62)) == "invalid"
    for n in range(40):  # abandoned uploads are bounded, and removed at the end
        runner.data("file-write", path=f"left-{n}", data="", offset=0, last=False)
    assert len([n for n in os.listdir(home) if n.startswith(".upload-")]) <= 32
    runner.close()
    assert [n for n in os.listdir(home) if n.startswith(".upload-")] == []


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../out", "denied"),
        ("/etc/passwd", "denied"),
        ("a/../../out", "denied"),
        ("outside/out", "denied"),
        ("outside/../out", "denied"),
        ("loop/x", "denied"),
        ("", "invalid"),
        (".", "invalid"),
        ("..", "invalid"),
        ("x/", "invalid"),
        ("a\0b", "invalid"),
        ("a/" * 3000 + "b", "invalid"),
        ("d/" * 100 + "b", "invalid"),
        ("a" * 256, "invalid"),
        ("file/below", "invalid"),
        (".output", "invalid"),
    ],
)
def test_paths_out_of_the_home_are_denied(runner: Driver, home: Path, tmp_path: Path, path: str, error: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "outside").symlink_to(outside)
    (home / "loop").symlink_to("loop")
    (home / "file").write_text("f")
    found = runner.error("file-write", path=path, data="eA==", offset=0, last=True)
    assert found == error or {found, error} <= {"denied", "invalid"}
    assert os.listdir(outside) == []
    assert not (tmp_path / "out").exists()


def test_absolute_paths_and_links_inside_the_home(runner: Driver, home: Path) -> None:
    runner.upload(f"{home}/deep/er/file", b"1")
    (home / "link").symlink_to("deep")
    runner.upload("link/er/other", b"2")
    assert (home / "deep" / "er" / "other").read_bytes() == b"2"
    # A link in the last place is replaced, not followed.
    (home / "target").write_text("kept")
    (home / "alias").symlink_to("target")
    runner.upload("alias", b"new")
    assert (home / "target").read_text() == "kept"
    assert (home / "alias").read_text() == "new"
    assert not (home / "alias").is_symlink()
    assert [e["name"] for e in runner.data("file-list", path=f"{home}/link/er")["entries"]] == ["file", "other"]


def test_list(runner: Driver, home: Path) -> None:
    (home / "b").mkdir()
    (home / "a").write_text("xy")
    (home / "l").symlink_to("/etc/passwd")
    os.mkfifo(home / "p")
    listed = runner.data("file-list", path=".")
    assert listed["path"] == str(home)
    assert [(e["name"], e["type"]) for e in listed["entries"]] == [
        (".output", "directory"),
        ("a", "file"),
        ("b", "directory"),
        ("l", "link"),
        ("p", "other"),
    ]
    entry = listed["entries"][1]
    assert (entry["size"], entry["mode"][0], listed["truncated"]) == (2, "-", False)
    assert [e["name"] for e in runner.data("file-list", path="a")["entries"]] == ["a"]
    assert runner.error("file-list", path="nothing") == "not-found"
    for path in ("..", "/", "/etc", "l"):
        assert runner.error("file-list", path=path) == "denied"


def test_a_crowded_folder_is_cut(runner: Driver, home: Path) -> None:
    (home / "crowd").mkdir()
    for n in range(10_050):
        (home / "crowd" / f"{n}").touch()
    listed = runner.data("file-list", path="crowd")
    assert (len(listed["entries"]), listed["truncated"]) == (10_000, True)


def test_download_of_trees(runner: Driver, home: Path) -> None:
    (home / "tree" / "sub").mkdir(parents=True)
    (home / "tree" / "sub" / "f").write_bytes(b"x" * 1_500_000)
    (home / "tree" / "inner").symlink_to("sub/f")
    (home / "tree" / "outer").symlink_to("/etc/passwd")
    (home / "tree" / "up").symlink_to("../../x")
    os.mkfifo(home / "tree" / "pipe")
    (home / "single").write_text("s")
    tree, single = runner.download("tree", "single")
    with tree, single:
        assert tree.getnames() == ["tree", "tree/inner", "tree/sub", "tree/sub/f"]
        assert tree.getmember("tree/sub/f").size == 1_500_000
        assert single.getnames() == ["single"]


def test_limits_and_errors_of_download(runner: Driver, home: Path) -> None:
    (home / "f").write_bytes(b"x" * 1000)
    (home / "sparse").touch()
    os.truncate(home / "sparse", 1 << 40)
    (home / "outside").symlink_to("/etc/passwd")
    assert runner.error("file-read", paths=["f"], max_bytes=999) == "too-large"
    assert runner.error("file-read", paths=["sparse"], max_bytes=1 << 24) == "too-large"
    assert runner.error("file-read", paths=["f", "nothing"], max_bytes=5000) == "not-found"
    assert runner.error("file-read", paths=["outside"], max_bytes=5000) == "denied"
    assert runner.error("file-read", paths=["../x"], max_bytes=5000) == "denied"
    assert runner.error("file-read", paths=["f"] * 65, max_bytes=5000) == "invalid"
    assert runner.run("1").out == "1\n"


def test_a_large_download_does_not_stop_the_runs(runner: Driver, home: Path) -> None:
    with open(home / "big", "wb") as file:
        file.truncate(200 * 1024 * 1024)
    runner.send("file-read", req=900, paths=["big"], max_bytes=1 << 30)
    time.sleep(0.3)
    resident = int(Path(f"/proc/{runner.process.pid}/statm").read_text().split()[1]) * 4096
    assert resident < 64 * 1024 * 1024
    run_id = runner.submit("print('in between')")
    seen: list[str] = []
    while "reply" not in seen:
        message = runner.receive()
        seen.append(message["t"])
        if message["t"] == "finished":
            assert message["id"] == run_id
    assert seen.index("finished") < seen.index("reply")


SWAPPER = """
import os, threading
os.makedirs('real', exist_ok=True)
os.symlink({outside!r}, 'trap')
def swap():
    while not os.path.exists('stop'):
        try:
            os.rename('real', 'away'); os.rename('trap', 'real')
            os.rename('real', 'trap'); os.rename('away', 'real')
        except OSError: pass
threading.Thread(target=swap, daemon=True).start()
"""


def test_a_folder_that_is_swapped_for_a_link_all_the_time(runner: Driver, home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    runner.run(SWAPPER.format(outside=str(outside)))
    results = set()
    for n in range(400):
        reply = runner.request("file-write", path=f"real/f{n}", data="eA==", offset=0, last=True)
        results.add(reply["ok"] or reply["error"]["type"])
        reply = runner.request("file-read", paths=["real/secret"], max_bytes=1000)
        assert reply["ok"] is False
        reply = runner.request("file-list", path="real")
        assert not reply["ok"] or "secret" not in [e["name"] for e in reply["data"]["entries"]]
    (home / "stop").touch()
    assert os.listdir(outside) == ["secret"]
    assert True in results


def test_files_work_while_code_runs(runner: Driver, home: Path) -> None:
    run_id = runner.submit("while True: pass")
    runner.upload("x", b"1")
    assert (home / "x").exists()
    runner.send("cancel", id=run_id, reason="x")
    runner.collect(run_id)


def test_a_home_that_is_gone(runner: Driver, home: Path) -> None:
    runner.run("import shutil, os\nshutil.rmtree(os.environ['HOME'])")
    assert runner.error("file-list", path=".") == "not-found"
    assert runner.error("file-write", path="x", data="", offset=0, last=True) == "not-found"
    assert runner.batch(exec="echo still").out == "still\n"
