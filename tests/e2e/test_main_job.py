"""The main job, as a newcomer does it on the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support import audit
from tests.support.cluster import Cluster, wait_until


def name(prefix: str = "e2e") -> str:
    return f"{prefix}-{uuid4().hex[:8]}"


RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")


def test_hello_world_on_a_mock_accelerator(cluster: Cluster) -> None:
    session = name()
    command = ["run", "--rm", "-t", session, *RESOURCES, "-r", "mock.device=1", "-c", 'print("hello world")', "python"]
    done = cluster.run(*command)
    assert done.returncode == 0, done.stderr
    assert "hello world" in done.stdout.splitlines()
    told = done.stdout + done.stderr
    assert "mock" in told, "the devices that the session was given are named"
    (listed,) = [s for s in cluster.json("ps", "--dead")["items"] if s["name"] == session]
    assert listed["status"] == "TERMINATED"


def test_the_program_sees_what_it_was_given(cluster: Cluster) -> None:
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "-r", "mock.device=2", "-e", "A=b=c", "-c", code, "python")
    assert done.returncode == 0, done.stderr
    environ = json.loads(done.stdout)
    assert environ["A"] == "b=c"
    assert environ["HOME"] == "/home/work"
    assert environ["BACKENDAI_CLUSTER_HOST"] == "main1"
    assert len(environ["MOCK_VISIBLE_DEVICES"].split(",")) == 2
    secrets = [k for k in environ if "SECRET" in k]
    assert secrets == [], "no secret of the platform enters a session"


@pytest.mark.parametrize("typed", ["hey\n", "hey", "hey\nmore\n"])
def test_a_program_reads_what_is_piped_into_the_command(cluster: Cluster, tmp_path: Path, typed: str) -> None:
    (tmp_path / "m.py").write_text("import sys\nprint(input())\nprint(sys.stdin.read().upper(), end='')\n")
    command = ["run", "--rm", "-q", *RESOURCES, "--basedir", str(tmp_path), "--exec", "python m.py", "python"]
    done = cluster.run(*command, str(tmp_path / "m.py"), input_=typed)
    assert (done.returncode, done.stdout) == (0, "hey\n" + typed[4:].upper()), done.stderr


def test_a_program_that_reads_without_input_gets_its_end(cluster: Cluster) -> None:
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "--exec", "cat; echo end", "python")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.mark.parametrize(
    "image",
    [
        pytest.param("nodejs", marks=pytest.mark.needs("node")),
        pytest.param("r", marks=pytest.mark.needs("R")),
        pytest.param("cpp", marks=pytest.mark.needs("gcc")),
    ],
)
def test_languages_of_the_host_are_images(cluster: Cluster, image: str) -> None:
    code = {"cpp": "cout << 6 * 7 << endl;"}.get(image, "6 * 7")
    done = cluster.run("run", "--rm", "-q", "-r", "cpu=1", "-r", "mem=512m", "-c", code, image)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["42"]), done.stdout + done.stderr


def test_globals_live_as_long_as_the_session(cluster: Cluster) -> None:
    session = name()
    assert cluster.run("start", "-t", session, *RESOURCES, "python").returncode == 0
    try:
        assert cluster.run("run", "-q", "-t", session, "-c", "x = 41", "python").returncode == 0
        done = cluster.run("run", "-q", "-t", session, "-c", "print(x + 1)", "python")
        assert done.stdout.strip() == "42"
        assert cluster.run("restart", session).returncode == 0
        done = cluster.run("run", "-q", "-t", session, "-c", "print(x)", "python")
        assert done.returncode == 1
        assert "NameError" in done.stdout + done.stderr
    finally:
        assert cluster.run("rm", session).returncode == 0


def test_files_go_in_and_come_out(cluster: Cluster, tmp_path: Path) -> None:
    session = name()
    work = cluster.data_dir.parent
    (work / "up.txt").write_text("content\n")
    assert cluster.run("start", "-t", session, *RESOURCES, "python").returncode == 0
    try:
        assert cluster.run("upload", session, "up.txt").returncode == 0
        assert "up.txt" in cluster.run("ls", session).stdout
        code = "open('down.txt', 'w').write(open('up.txt').read() * 2)"
        assert cluster.run("run", "-q", "-t", session, "-c", code, "python").returncode == 0
        done = cluster.run("download", session, "down.txt", "--dest", str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "down.txt").read_text() == "content\ncontent\n"
    finally:
        cluster.run("rm", session, check=True)


def test_a_program_of_several_files_in_batch_mode(cluster: Cluster) -> None:
    work = cluster.data_dir.parent
    (work / "main.py").write_text("import sys, part\nprint(part.word, sys.argv[1:])\nsys.exit(3)\n")
    (work / "part.py").write_text("word = 'batch'\n")
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "--exec", "python main.py a b", "python", "main.py", "part.py")
    assert "batch ['a', 'b']" in done.stdout, done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize(("program", "result"), [("true", "SUCCESS"), ("exit 4", "FAILURE")])
def test_a_batch_session_ends_with_its_result(cluster: Cluster, program: str, result: str) -> None:
    session = name("batch")
    cluster.run("start", "-t", session, "--type", "batch", "-c", program, *RESOURCES, "python", check=True)

    def ended() -> dict[str, object] | None:
        found = [s for s in cluster.json("ps", "--dead")["items"] if s["name"] == session]
        return found[0] if found else None

    assert wait_until(ended, what="the end of the batch session")["result"] == result
    watched = cluster.run("watch", session)
    assert watched.returncode == (4 if result == "FAILURE" else 0), "also when it has ended before"


def test_what_does_not_fit_says_why(cluster: Cluster) -> None:
    done = cluster.run("run", "--rm", *RESOURCES, "-r", "mock.device=99", "-c", "1", "python")
    assert done.returncode == 125
    assert re.search(r"mock\.device", done.stderr), done.stderr
    done = cluster.run("run", "--rm", *RESOURCES, "-r", "nonsense.device=1", "-c", "1", "python")
    assert done.returncode == 125
    assert "nonsense.device" in done.stderr
    done = cluster.run("run", "--rm", *RESOURCES, "-c", "1", "no-such-image")
    assert done.returncode == 125
    assert "python" in done.stderr, "it says which images there are"


def test_a_pending_session_explains_itself_and_can_be_cancelled(cluster: Cluster) -> None:
    holder, waiter = name("holder"), name("waiter")
    cluster.run("start", "-t", holder, *RESOURCES, "-r", "mock.device=2", "python", check=True)
    try:
        cluster.run("start", "-t", waiter, "--enqueue-only", *RESOURCES, "-r", "mock.device=1", "python", check=True)

        def reason() -> str | None:
            text = cluster.run("info", waiter, check=True).stdout
            return text if "mock.device" in text and "PENDING" in text else None

        wait_until(reason, what="an explanation of the pending session")
        assert cluster.run("rm", waiter).returncode == 0
        (listed,) = [s for s in cluster.json("ps", "--dead")["items"] if s["name"] == waiter]
        assert listed["status"] == "CANCELLED"
    finally:
        cluster.run("rm", holder, check=True)


def test_parallel_runs_over_a_range(cluster: Cluster) -> None:
    done = cluster.run(
        "run", "--rm", "-r", "cpu=1", "-r", "mem=128m", "-e", "N=$X", "--env-range", "X=case:a,b,c",
        "-c", 'import os; print("case", os.environ["N"])', "python",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {f"case {c}" for c in "abc"} <= {line.strip().rpartition("] ")[2] for line in done.stdout.splitlines()}


def test_another_users_session_does_not_exist(cluster: Cluster) -> None:
    session = name("secret")
    assert cluster.run("start", "-t", session, *RESOURCES, "python", admin=True).returncode == 0
    try:
        (row,) = [s for s in cluster.json("ps", admin=True)["items"] if s["name"] == session]
        for reference in (session, row["id"]):
            done = cluster.run("logs", reference)
            assert done.returncode != 0
            assert "no such session" in done.stderr.lower(), done.stderr
    finally:
        cluster.run("rm", session, admin=True, check=True)


def test_the_admin_sees_which_limits_are_enforced(cluster: Cluster) -> None:
    text = cluster.run("admin", "agent", "list", "--wide", admin=True, check=True).stdout
    assert "i-local" in text
    assert re.search(r"(?i)enforced|watched", text)
    assert (
        cluster.run("admin", "agent", "list").returncode != 0
        or "i-local" not in cluster.run("admin", "agent", "list").stdout
    )


def test_a_second_up_says_so(cluster: Cluster) -> None:
    done = cluster.run("up", "--data-dir", str(cluster.data_dir))
    assert done.returncode == 1
    assert "already runs" in done.stderr
    assert str(cluster.process.pid if cluster.process else "") in done.stderr


def test_a_removed_session_leaves_nothing(cluster: Cluster) -> None:
    session = name()
    cluster.run("start", "-t", session, *RESOURCES, "-r", "mock.device=1", "python", check=True)
    kernels = audit.rows(
        cluster.data_dir / "manager" / "backendai.db",
        "SELECT k.id FROM kernels k JOIN sessions s ON s.id = k.session_id WHERE s.name = ?",
        session,
    )
    ids = [str(row["id"]) for row in kernels]
    assert ids
    assert list(audit.leftovers(cluster.data_dir, *ids)), "the audit sees a session while it lives"
    cluster.run("rm", session, check=True)
    wait_until(lambda: not list(audit.leftovers(cluster.data_dir, *ids)), what="nothing left", timeout_s=15)


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_sessions_survive_the_cluster(own_cluster: Cluster, how: str) -> None:
    cluster = own_cluster
    cluster.start()
    session = name()
    cluster.run("start", "-t", session, *RESOURCES, "-r", "mock.device=1", "python", check=True)
    cluster.run("run", "-q", "-t", session, "-c", "x = 'kept'", "python", check=True)
    assert cluster.process is not None
    if how == "SIGINT":
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(20) == 0, cluster.log()
        cluster.process = None
    else:
        cluster.kill()
    keys = (cluster.data_dir / "env.sh").read_text()
    cluster.start()
    assert (cluster.data_dir / "env.sh").read_text() == keys
    done = cluster.run("run", "-q", "-t", session, "-c", "print(x)", "python")
    assert done.stdout.strip() == "kept", done.stderr + cluster.log()
    cluster.run("rm", session, check=True)
    wait_until(lambda: not audit.processes("BACKENDAI_SESSION_NAME=" + session), what="no process is left")


def test_the_keys_are_random_and_private(cluster: Cluster) -> None:
    for file in ("env.sh", "env-admin.sh"):
        assert (cluster.data_dir / file).stat().st_mode & 0o077 == 0
    user, admin = cluster.environment(), cluster.environment(admin=True)
    assert user["BACKEND_ACCESS_KEY"] != admin["BACKEND_ACCESS_KEY"]
    assert "AKIAIOSFODNN7EXAMPLE" not in {user["BACKEND_ACCESS_KEY"], admin["BACKEND_ACCESS_KEY"]}
    listing = subprocess.run(
        ["grep", "-rlF", user["BACKEND_SECRET_KEY"], str(cluster.data_dir / "logs")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listing.stdout == "", "the secret key is in no log"


def test_agents_take_plugin_settings_from_the_shared_configuration(own_cluster: Cluster) -> None:
    cluster = own_cluster
    cluster.start()
    key = "config/plugins/accelerator/mock"
    settings = json.dumps({"allocation_mode": "fractional", "unit_mem": 2**30, "unit_proc": 4})
    assert cluster.run("admin", "etcd", "set", key, settings).returncode != 0, "not for users"
    cluster.run("admin", "etcd", "set", key, settings, admin=True, check=True)
    assert cluster.stop() == 0
    cluster.start()
    done = cluster.run("run", "--rm", *RESOURCES, "-r", "mock.shares=0.5", "-c", "print('half')", "python")
    assert "half" in done.stdout, done.stderr
    done = cluster.run("run", "--rm", *RESOURCES, "-r", "mock.shares=0.001", "-c", "1", "python")
    assert done.returncode == 125
    assert "0.01" in done.stderr, "it names the smallest step"
