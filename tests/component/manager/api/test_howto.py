"""The program of docs/howto/call-the-rest-api.md does what the page says."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.component.manager.api.conftest import Api

PAGE = Path(__file__).parents[4] / "docs/howto/call-the-rest-api.md"


async def test_the_program_runs(api: Api, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0])
    environment = {
        **os.environ,
        "BACKEND_ENDPOINT": f"http://127.0.0.1:{api.port}",
        "BACKEND_ACCESS_KEY": api.user.access_key,
        "BACKEND_SECRET_KEY": api.user.secret_key,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(program), env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert output == b"[]\n"  # the scripted agent prints nothing for words that it does not know
    assert api.agent.executed[0].code == "print(6*7)"
    assert len(api.agent.destroyed) == 1
