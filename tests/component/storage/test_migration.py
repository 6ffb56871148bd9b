"""`backend.ai storage migrate-volume`."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from click.testing import CliRunner

from ai.backend.storage.main import main
from tests.support.storage_proxy import ProxyProcess


def test_an_older_volume_is_moved_by_a_command(tmp_path: Path) -> None:
    process = ProxyProcess(tmp_path)
    folder = uuid4().hex
    place = tmp_path / "volume1" / folder[:2] / folder[2:4] / folder[4:]
    place.mkdir(parents=True)
    (place / "file").write_text("content")
    (tmp_path / "volume1" / "version.txt").write_text("2\n")
    listed, scope = tmp_path / "folders", uuid4()

    def migrate(text: str, name: str = "volume1") -> tuple[int, str]:
        listed.write_text(text)
        result = CliRunner().invoke(main, ["migrate-volume", "-f", str(process.file), name, str(listed)])
        return result.exit_code, result.output

    assert migrate("", "none") == (1, "Error: There is no such volume.\n")
    status, output = migrate("")
    assert (status, folder in output) == (1, True)
    status, output = migrate("user:x/y\n")
    assert status == 1
    assert "Traceback" not in output
    assert migrate(f"project:{scope}/{folder}\n\n") == (0, "volume1 has today's layout.\n")
    new = tmp_path / "volume1" / scope.hex / folder[:2] / folder[2:4] / folder[4:]
    assert (new / "file").read_text() == "content"
    process.start()
    process.stop()
