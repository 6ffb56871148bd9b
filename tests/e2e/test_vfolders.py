"""Virtual folders of the embedded cluster: filled by the command line, mounted and written by sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("folders")
    with running_cluster(root / "data", "--agents", "2") as made:
        made.env["XDG_CACHE_HOME"] = str(root / "cache")
        yield made


def _python(cluster: Cluster, code: str, *options: str, check: bool = True) -> str:
    done = cluster.run("run", "--rm", *options, "-c", code, "python", check=check)
    return done.stdout if done.returncode == 0 else done.stdout + done.stderr


def test_a_session_reads_and_writes_a_folder(cluster: Cluster, tmp_path: Path) -> None:
    big = os.urandom(3_000_000)
    (tmp_path / "bigdata.csv").write_bytes(big)
    cluster.run("vfolder", "create", "mydata1", "local:volume1", check=True)
    cluster.run("vfolder", "upload", "mydata1", "-b", str(tmp_path), str(tmp_path / "bigdata.csv"), check=True)
    code = (
        "import os; d = '/home/work/mydata1'; data = open(d + '/bigdata.csv', 'rb').read()\n"
        "os.mkdir(d + '/out'); open(d + '/out/result', 'wb').write(data[::-1])\n"
        "print(len(data), os.stat(d).st_uid == os.getuid())"
    )
    assert "3000000 True" in _python(cluster, code, "-m", "mydata1")
    listing = cluster.json("vfolder", "ls", "mydata1", "out")
    assert [(entry["name"], entry["size"]) for entry in listing] == [("result", 3_000_000)]
    cluster.run("vfolder", "download", "mydata1", "-b", str(tmp_path / "back"), "-r", "out", check=True)
    assert (tmp_path / "back/out/result").read_bytes() == big[::-1]
    info = cluster.json("vfolder", "info", "mydata1")
    assert (info["num_files"], info["last_used"] is not None) == (2, True)
    cluster.run("vfolder", "rm", "-y", "-r", "mydata1", "out", check=True)
    assert [entry["name"] for entry in cluster.json("vfolder", "ls", "mydata1")] == ["bigdata.csv"]


def test_aliases_read_only_folders_and_dot_folders(cluster: Cluster) -> None:
    for name in ("mydata2", ".mine"):
        cluster.run("vfolder", "create", name, check=True)
    cluster.run("vfolder", "create", "team", "--group", "default", "--permission", "ro", admin=True, check=True)
    code = (
        "import os\n"
        "open('/workspace/a','w').write('x'); open('/home/work/.mine/b','w').write('y')\n"
        "try: open('/home/work/team/c','w')\n"
        "except OSError as e: print('errno', e.errno)"
    )
    told = _python(cluster, code, "-m", "mydata2:/workspace", "-m", "team")
    assert "errno 30" in told, "a read-only file system"
    assert [e["name"] for e in cluster.json("vfolder", "ls", "mydata2")] == ["a"]
    assert "['b']" in _python(cluster, "import os; print(os.listdir('/home/work/.mine'))")
    cluster.run("vfolder", "delete", ".mine", check=True)
    assert "False" in _python(cluster, "import os; print(os.path.exists('/home/work/.mine'))")


@pytest.mark.needs("root")
def test_a_path_in_a_folder_never_leads_out_of_it(cluster: Cluster) -> None:
    cluster.run("vfolder", "create", "deep", check=True)
    cluster.run("vfolder", "mkdir", "-p", "deep", "sub/dir", check=True)
    _python(cluster, "open('/w/file', 'w').write('x')", "-m", "deep/sub/dir:/w")
    assert [e["name"] for e in cluster.json("vfolder", "ls", "deep", "sub/dir")] == ["file"]
    links = "import os; os.symlink('sub', 'deep/inner'); os.symlink('/etc', 'deep/outer')"
    _python(cluster, links, "-m", "deep")
    outer = cluster.run("run", "--rm", "-m", "deep/outer:/w", "-c", "1", "python")
    assert "'deep' cannot be mounted" in outer.stderr
    # What is a link when the session starts is opened by nobody, wherever it leads: it may be turned at any time.
    inner = cluster.run("run", "--rm", "-m", "deep/inner:/w", "-c", "1", "python")
    assert "Not a directory: 'inner'" in inner.stderr


@pytest.mark.needs("isolation", "root")
def test_every_kernel_of_a_cluster_session_sees_the_folder(cluster: Cluster) -> None:
    cluster.run("vfolder", "create", "shared-by-all", check=True)
    start = ["start", "-t", "both", "--cluster-size", "2", "--cluster-mode", "multi-node", "-m", "shared-by-all"]
    script = cluster.data_dir.parent / "boot.sh"
    script.write_text("touch /home/work/shared-by-all/$BACKENDAI_CLUSTER_HOST\n")
    cluster.run(*start, "--bootstrap-script", str(script), "python", check=True)
    try:
        wait_until(
            lambda: [e["name"] for e in cluster.json("vfolder", "ls", "shared-by-all")] == ["main1", "sub1"],
            what="a file of each kernel",
        )
        busy = cluster.run("vfolder", "delete", "shared-by-all")
        assert busy.returncode == 1
        assert "the session 'both' mounts it" in busy.stderr
    finally:
        cluster.run("rm", "both", check=True)
    cluster.run("vfolder", "delete", "shared-by-all", check=True)


def test_a_mount_that_cannot_be_honoured_names_the_folder(cluster: Cluster) -> None:
    told = cluster.run("run", "--rm", "-m", "nowhere", "-c", "1", "python")
    assert told.returncode != 0
    assert "'nowhere' cannot be mounted" in told.stderr


def test_folders_and_their_files_outlive_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("still here")
    cluster.run("vfolder", "create", "kept", check=True)
    cluster.run("vfolder", "upload", "kept", "-b", str(tmp_path), str(tmp_path / "kept"), check=True)
    assert cluster.process is not None
    cluster.process.send_signal(signal.SIGKILL)
    cluster.process.wait()
    cluster.start()
    assert "still here" in _python(cluster, "print(open('/home/work/kept/kept').read())", "-m", "kept")


def test_the_sdks_example_mounts_folders_by_name(cluster: Cluster, tmp_path: Path) -> None:
    """Spec 03-12, "Creating and destroying a compute session"; `BACKEND_VFOLDER_MOUNTS` adds to every session."""
    for name in ("mydata", "mymodel", "always"):
        cluster.run("vfolder", "create", name, check=True)
    program = tmp_path / "example.py"
    program.write_text(
        "import json\n"
        "from ai.backend.client.session import Session\n"
        "with Session() as api_session:\n"
        "    my_session = api_session.ComputeSession.get_or_create(\n"
        "        'python', mounts=['mydata', 'mymodel'], resources={'cpu': 1, 'mem': '128m'})\n"
        "    code = \"import os; print(sorted(n for n in os.listdir('/home/work') if not n.startswith('.')))\"\n"
        "    print(my_session.execute(code=code)['console'][0][1])\n"
        "    my_session.destroy()\n"
    )
    environment = {**cluster.environment(), "BACKEND_VFOLDER_MOUNTS": "always"}
    done = subprocess.run(
        [cluster.python, program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    folders = "['always', 'id_container', 'id_container.pub', 'mydata', 'mymodel']"  # the key pair is the session's own
    assert folders in done.stdout, done.stdout + done.stderr


def test_creating_and_deleting_at_once_never_both_succeed(cluster: Cluster) -> None:
    for n in range(3):
        cluster.run("vfolder", "create", f"raced{n}", check=True)
        with ThreadPoolExecutor(2) as pool:
            start = pool.submit(cluster.run, "start", "-t", f"race-{n}-session", "-m", f"raced{n}", "python")
            delete = pool.submit(cluster.run, "vfolder", "delete", f"raced{n}")
            outcomes = start.result().returncode, delete.result().returncode
        assert outcomes in ((0, 1), (1, 0)), (start.result().stderr, delete.result().stderr)
        if outcomes[0] == 0:
            cluster.run("rm", f"race-{n}-session", check=True)


# ---- administration ----


def test_quotas_are_set_by_administrators_and_shown_to_everybody(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(300_000))
    cluster.run("vfolder", "create", "bounded", "local:volume1", check=True)
    scope = ("local:volume1", "user:user@local")
    before = cluster.json("admin", "quota-scope", "get", *scope, admin=True)[0]
    limit = str(before["usage_bytes"] + 100_000)
    said = cluster.run("admin", "quota-scope", "set", *scope, limit, admin=True, check=True)
    assert "a soft limit" in said.stdout + said.stderr
    mine = [row for row in cluster.json("quota") if row["quota_scope_id"].startswith("user:")]
    assert [(row["host"], str(row["hard_limit_bytes"]), row["enforcement"]) for row in mine] == [
        ("local:volume1", limit, "soft")
    ]
    upload = ("vfolder", "upload", "bounded", "-b", str(tmp_path), str(tmp_path / "big"))
    full = cluster.run(*upload)
    assert (full.returncode, "quota" in full.stderr) == (1, True), full.stderr
    assert cluster.run("admin", "quota-scope", "set", *scope, "1t").returncode == 1, "users set none"
    cluster.run("admin", "quota-scope", "unset", *scope, admin=True, check=True)
    cluster.run(*upload, check=True)
    for wrong in ("nobody", "user:nobody@local", "project:nobody"):
        assert cluster.run("admin", "quota-scope", "get", "local:volume1", wrong, admin=True).returncode == 1
    policy = ("admin", "user-resource-policy")
    cluster.run(*policy, "add", "default", "--max-quota-scope-size", "1g", admin=True, check=True)
    wait_until(
        lambda: cluster.json("admin", "quota-scope", "get", *scope, admin=True)[0]["hard_limit_bytes"] == 2**30,
        what="the policy's limit",
    )
    cluster.run(*policy, "update", "default", "--max-quota-scope-size", "none", admin=True, check=True)
    assert [p["max_quota_scope_size"] for p in cluster.json(*policy, "list", admin=True)] == [-1]


def test_what_administrators_do_with_folders(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.json("vfolder", "create", "given")
    cluster.run("admin", "vfolder", "change-vfolder-ownership", folder["id"], "admin@local", admin=True, check=True)
    assert "given" not in [f["name"] for f in cluster.json("vfolder", "list-own")]
    assert "given" in [f["name"] for f in cluster.json("vfolder", "list-own", admin=True)]
    assert [v["id"] for v in cluster.json("admin", "storage", "list", admin=True)] == ["local:volume1"]
    assert cluster.json("admin", "storage", "info", "local:volume1", admin=True)["backend"] == "vfs"
    assert "local:volume1" in cluster.run("admin", "vfolder", "list-hosts", admin=True, check=True).stdout
    assert "volume1" in cluster.run("admin", "vfolder", "list-mounts", admin=True, check=True).stdout
    every = cluster.json("admin", "permission", "list", admin=True)["vfolder_host_permission_list"]
    assert len(every) == 8
    try:
        left = json.dumps({"local:volume1": [p for p in every if p != "mount-in-session"]})
        cluster.run("admin", "domain", "update", "default", "--vfolder-host-perms", left, admin=True, check=True)
        cluster.run("vfolder", "create", "unmountable", check=True)
        told = cluster.run("run", "--rm", "-m", "unmountable", "-c", "1", "python")
        assert "may not mount folders in sessions on 'local:volume1'" in told.stderr
    finally:
        all_ = json.dumps({"local:volume1": every})
        cluster.run("admin", "domain", "update", "default", "--vfolder-host-perms", all_, admin=True, check=True)
    cluster.run("admin", "etcd", "set", "volumes/blocked/local:volume1", "mount-in-session", admin=True, check=True)
    try:
        wait_until(
            lambda: "may not mount" in cluster.run("run", "--rm", "-m", "unmountable", "-c", "1", "python").stderr,
            what="the volume being closed to mounts",
        )
    finally:
        cluster.run("admin", "etcd", "delete", "volumes/blocked/local:volume1", admin=True, check=True)


def test_an_accepted_invitation_names_its_folder(cluster: Cluster) -> None:
    cluster.run("vfolder", "create", "offered", check=True)
    cluster.run("vfolder", "invite", "offered", "admin@local", check=True)
    (invitation,) = json.loads(cluster.run("vfolder", "invitations", "--output", "json", admin=True, check=True).stdout)
    accepted = cluster.run("vfolder", "accept", invitation["id"][:8], admin=True, check=True)
    assert accepted.stdout == "accepted the invitation to offered\n"


def test_copying_as_scp_does_and_addresses_for_others(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/two.txt").write_text("two")
    cluster.run("vfolder", "create", "copied", check=True)
    cluster.run("vfolder", "cp", "-r", str(tmp_path / "one.txt"), str(tmp_path / "d"), "copied:in", check=True)
    assert [e["name"] for e in cluster.json("vfolder", "ls", "copied", "in")] == ["d", "one.txt"]
    back = tmp_path / "back"
    cluster.run("vfolder", "cp", "-r", "copied:in", str(back), check=True)
    assert (back / "d/two.txt").read_text() == "two"
    cluster.run("vfolder", "cp", "-r", "copied:in", str(back), check=True)
    assert (back / "in/d/two.txt").read_text() == "two"
    cluster.run("vfolder", "cp", "copied:in/one.txt", str(tmp_path / "renamed.txt"), check=True)
    assert (tmp_path / "renamed.txt").read_text() == "one"
    cluster.run("vfolder", "cp", "copied:in/one.txt", str(back), check=True)
    assert (back / "one.txt").read_text() == "one"
    cluster.run("vfolder", "cp", str(tmp_path / "one.txt"), "copied:new/uno.txt", check=True)
    cluster.run("vfolder", "cp", "-r", str(tmp_path / "d"), "copied:e", check=True)
    cluster.run("vfolder", "cp", "-r", str(tmp_path / "d"), "copied:e", check=True)
    cluster.run("vfolder", "cp", "-r", "copied:", str(tmp_path / "all"), check=True)
    names = {path.relative_to(tmp_path / "all").as_posix() for path in (tmp_path / "all").rglob("*") if path.is_file()}
    assert names == {"in/one.txt", "in/d/two.txt", "new/uno.txt", "e/two.txt", "e/d/two.txt"}
    assert cluster.run("vfolder", "cp", "copied:in", "copied:out").returncode == 2
    address = cluster.run("vfolder", "request-download", "copied", "in/one.txt", check=True).stdout.strip()
    with urllib.request.urlopen(address, timeout=10) as reply:
        assert reply.read() == b"one"
    cluster.run("vfolder", "delete-file", "-y", "copied", "in/one.txt", check=True)
    assert [e["name"] for e in cluster.json("vfolder", "ls", "copied", "in")] == ["d"]


# ---- interrupted transfers ----


def _part(root: Path, pattern: str, at_least: int) -> Path | None:
    """A file of that pattern which has so many bytes already."""
    return next((p for p in root.rglob(pattern) if p.stat().st_size >= at_least), None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_interrupted_transfers_go_on_with_the_same_command(
    cluster: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    """What was there is kept: the file that is whole at last is the very one that was begun."""
    name = f"resume{number.value}"
    content = os.urandom(96 << 20)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/big").write_bytes(content)
    cluster.run("vfolder", "create", name, check=True)
    upload = ("vfolder", "upload", name, "-r", "--chunk-size", "1", "-b", str(tmp_path), str(tmp_path / "tree"))
    begun = _interrupt(cluster, upload, number, lambda: _part(cluster.data_dir, ".uploads/*.data", 4 << 20))
    cluster.run(*upload, check=True)
    [there] = [p for p in cluster.data_dir.rglob("tree/big") if p.stat().st_ino == begun.st_ino]
    assert there.read_bytes() == content
    back = tmp_path / "back"
    download = ("vfolder", "download", name, "-r", "-b", str(back), "tree")
    half = _interrupt(cluster, download, number, lambda: _part(back, ".big.part", 1 << 20))
    cluster.run(*download, check=True)
    assert (back / "tree/big").stat().st_ino == half.st_ino
    assert (back / "tree/big").read_bytes() == content
    assert [p.name for p in (back / "tree").iterdir()] == ["big"]
    cluster.run("vfolder", "delete", name, check=True)
    cluster.run("vfolder", "purge", "-y", name, check=True)


def _while_stopped(
    process: subprocess.Popen[bytes], part: Callable[[], Path | None], number: signal.Signals
) -> os.stat_result | None:
    """Look for the part while the command stands still, and send the signal if it is there: nothing comes between."""
    process.send_signal(signal.SIGSTOP)
    try:
        if (found := part()) is None:
            return None
        told = found.stat()
        process.send_signal(number)
        return told
    finally:
        process.send_signal(signal.SIGCONT)


def _interrupt(
    cluster: Cluster, command: tuple[str, ...], number: signal.Signals, part: Callable[[], Path | None]
) -> os.stat_result:
    """Run a command until it has written a part; what the part is."""
    program = [cluster.python, "-m", "ai.backend.cli.main", *command]
    process = subprocess.Popen(
        program,
        env=cluster.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cluster.data_dir.parent,
    )
    try:
        deadline = time.monotonic() + 60
        while (told := _while_stopped(process, part, number)) is None:
            assert process.poll() is None, "it was done before it could be interrupted"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.wait()
    return told
