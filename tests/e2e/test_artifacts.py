"""Models from a hub to one installation, from there to another one, and into the programs of its users."""

from __future__ import annotations

import hashlib
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, read_env, running_cluster, wait_until
from tests.support.fake_hub import FakeHub
from tests.support.hub_thread import TINY, hub_with_tiny

DIGEST = hashlib.sha256(TINY["model.safetensors"]).hexdigest()
READ = (
    "import hashlib\n"
    "print(open('/home/work/tiny/config.json').read().strip())\n"
    "print(hashlib.sha256(open('/home/work/tiny/model.safetensors', 'rb').read()).hexdigest())\n"
    "try: open('/home/work/tiny/config.json', 'a')\n"
    "except OSError as e: print('errno', e.errno)\n"
)


@dataclass
class Installations:
    """``headquarters`` may reach the hub; ``branch`` knows headquarters alone."""

    hub: FakeHub
    headquarters: Cluster
    branch: Cluster


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installations]:
    root = tmp_path_factory.mktemp("artifacts")
    for name in ("hq", "branch"):
        (root / name).mkdir()
        (root / name / "storage-proxy.toml").write_text('[artifacts]\nallowed-hosts = ["127.0.0.1"]\n')
    with hub_with_tiny() as hub, running_cluster(root / "hq") as one, running_cluster(root / "branch") as two:
        yield Installations(hub, one, two)


def _connect(at: Installations, monkeypatch: pytest.MonkeyPatch, *, admin: bool) -> str:
    """Make headquarters a registry of the branch, with a keypair there; the registry's name."""
    keys = read_env(at.headquarters.data_dir / ("env-admin.sh" if admin else "env.sh"))
    name = "hq-admin" if admin else "hq-user"
    monkeypatch.setenv("REGISTRY_SECRET_KEY", keys["BACKEND_SECRET_KEY"])
    at.branch.run(
        *("admin", "artifact", "registry", "add", name, "reservoir", keys["BACKEND_ENDPOINT"]),
        *("--access-key", keys["BACKEND_ACCESS_KEY"]),
        admin=True,
        check=True,
    )
    return name


@pytest.mark.timeout(240)
def test_a_branch_has_headquarters_scan_and_import_and_its_users_read(
    installations: Installations, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = installations
    add = ["admin", "artifact", "registry", "add", "hub", "huggingface", at.hub.url]
    at.headquarters.run(*add, admin=True, check=True)
    name = _connect(at, monkeypatch, admin=True)
    scanned = at.branch.run(
        "admin", "artifact", "scan", name, "--delegate-to", "hub", admin=True, check=True, timeout_s=120
    )
    assert f"{name} has 1 artifacts with 2 revisions" in scanned.stdout
    [item] = at.branch.json("artifact", "list", admin=True)["items"]
    assert {(r["version"], r["status"], r["remote_status"]) for r in item["revisions"]} == {
        ("main", "SCANNED", "SCANNED"),
        ("v1", "SCANNED", "SCANNED"),
    }
    assert at.branch.json("artifact", "list")["items"] == [], "users see what is available"

    refused = at.branch.run("admin", "artifact", "import", "acme/tiny@main", admin=True)
    assert refused.returncode == 1
    assert "import it with delegation" in refused.stderr
    forbidden = at.branch.run("admin", "artifact", "import", "acme/tiny@main")
    assert "Only superadmins scan, import and remove artifacts" in forbidden.stderr
    early = at.branch.run("run", "--rm", "-m", "artifact:acme/tiny", "-c", "1", "python")
    assert "'acme/tiny' cannot be mounted" in early.stderr

    done = at.branch.run(
        "admin", "artifact", "import", "--delegate", "acme/tiny@main", admin=True, check=True, timeout_s=120
    )
    assert "acme/tiny@main is AVAILABLE" in done.stdout
    [there] = at.headquarters.json("artifact", "list")["items"]
    assert [(r["version"], r["status"]) for r in there["revisions"]] == [("main", "AVAILABLE")]

    told = at.branch.run("run", "--rm", "-q", "-m", "artifact:acme/tiny", "-c", READ, "python", check=True)
    assert told.stdout.split() == ['{"hidden_size":', "8}", DIGEST, "errno", "30"], "a read-only file system"

    at.branch.run("start", "-t", "holder", "-m", "artifact:acme/tiny@main:/models/tiny", "python", check=True)
    try:
        held = at.branch.run("admin", "artifact", "cleanup", "acme/tiny@main", admin=True)
        assert "cannot be cleaned up: the session 'holder' mounts it" in held.stderr
    finally:
        at.branch.run("rm", "holder", check=True)
    cleaned = at.branch.json("admin", "artifact", "cleanup", "acme/tiny@main", admin=True)
    assert [r["status"] for r in cleaned] == ["SCANNED"]
    assert at.branch.json("artifact", "list")["items"] == []


@pytest.mark.timeout(120)
def test_any_keypair_can_fetch_what_is_available(
    installations: Installations, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at = installations
    hub = at.headquarters.run("admin", "artifact", "registry", "list", admin=True, check=True).stdout
    if "hub" not in hub:
        add = ["admin", "artifact", "registry", "add", "hub", "huggingface", at.hub.url]
        at.headquarters.run(*add, admin=True, check=True)
        at.headquarters.run("admin", "artifact", "scan", "hub", admin=True, check=True)
    at.headquarters.run("admin", "artifact", "import", "acme/tiny@main", admin=True, check=True)
    name = _connect(at, monkeypatch, admin=False)
    no = at.branch.run("admin", "artifact", "scan", name, "--delegate-to", "hub", admin=True)
    assert no.returncode == 1
    assert "does not let our keypair do this" in no.stderr
    at.branch.run("admin", "artifact", "scan", name, admin=True, check=True)
    [item] = at.branch.json("artifact", "list", "-r", name, admin=True)["items"]
    [revision] = item["revisions"]
    assert (revision["version"], revision["remote_status"]) == ("main", "AVAILABLE")
    at.branch.run("admin", "artifact", "import", revision["id"], admin=True, check=True)
    at.branch.run("artifact", "download", revision["id"], "-b", str(tmp_path), check=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == TINY
    urls = at.branch.json("artifact", "presign", revision["id"], "config.json")
    with urllib.request.urlopen(urls[0]["url"], timeout=10) as reply:
        assert reply.read() == TINY["config.json"]


@pytest.mark.timeout(120)
def test_an_import_goes_on_after_the_whole_cluster_was_killed(installations: Installations) -> None:
    at, cluster = installations, installations.headquarters
    hub = cluster.run("admin", "artifact", "registry", "list", admin=True, check=True).stdout
    if "hub" not in hub:
        add = ["admin", "artifact", "registry", "add", "hub", "huggingface", at.hub.url]
        cluster.run(*add, admin=True, check=True)
    cluster.run("admin", "artifact", "scan", "hub", admin=True, check=True)
    at.hub.gate.clear()
    command = [cluster.python, "-m", "ai.backend.cli.main", "admin", "artifact", "import", "acme/tiny@v1"]
    with subprocess.Popen(
        command, env=cluster.environment(admin=True), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as waiting:

        def is_fetching() -> bool:
            progress = cluster.json("artifact", "info", "acme/tiny", admin=True)["revisions"]
            return any(r["progress"] and r["progress"]["current"] for r in progress)

        wait_until(is_fetching, what="bytes of the model")
        cluster.kill()
        at.hub.gate.set()
        cluster.start()
        told, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, told
    assert "acme/tiny@v1 is AVAILABLE" in told


@pytest.mark.timeout(120)
def test_a_package_is_uploaded_and_imported_by_a_program(installations: Installations, tmp_path: Path) -> None:
    cluster = installations.branch
    package = tmp_path / "tools"
    package.mkdir()
    (package / "__init__.py").write_text("ANSWER = 42\n")
    (package / "empty.txt").touch()
    cluster.run("admin", "artifact", "registry", "add", "mine", "local", admin=True, check=True)
    done = cluster.run(
        *("admin", "artifact", "upload", "mine", "tools", "1.0", str(package), "-b", str(tmp_path), "-t", "package"),
        admin=True,
        check=True,
    )
    assert "tools@1.0 is AVAILABLE" in done.stdout
    files = cluster.json("artifact", "files", "tools")
    assert [(f["path"], f["size"]) for f in files] == [("tools/__init__.py", 12), ("tools/empty.txt", 0)]
    code = "import sys; sys.path.insert(0, '/opt/packages'); import tools; print(tools.ANSWER)"
    told = cluster.run("run", "--rm", "-q", "-m", "artifact:tools@1.0:/opt/packages", "-c", code, "python", check=True)
    assert told.stdout.split() == ["42"]
