"""The maintainer scripts of the Debian packages, on a folder in place of ``/etc/backend.ai``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/debian/postinstall.sh"
NOBODY = 65_534


@pytest.mark.needs("root")
def test_the_user_of_the_manager_replaces_no_settings_of_root(tmp_path: Path) -> None:
    """The agent runs as root and starts the programs that its settings name."""
    folder = tmp_path / "etc"
    folder.mkdir()
    settings = folder / "agent.toml"
    settings.write_text("# of root\n")
    script = SCRIPT.read_text().replace("/etc/backend.ai", str(folder)).replace("root:backendai", f"0:{NOBODY}")
    assert str(folder) in script
    subprocess.run(["sh", "-c", script.replace("systemctl daemon-reload", ":")], check=True)
    attempt = "echo made > manager.key && mv manager.key manager.key_secret && ! mv -f manager.key_secret agent.toml"
    tried = subprocess.run(
        ["sh", "-c", attempt],
        cwd=folder,  # entered as root: the folders above it are closed to others
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert tried.returncode == 0, "it makes and replaces files of its own, and none of root"
    assert settings.read_text() == "# of root\n"
