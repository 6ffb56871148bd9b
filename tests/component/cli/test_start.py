"""What the command costs before it does anything, and what it refuses to run beside."""

import ast
import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ai.backend.cli.conflicts import find_conflicting_packages
from tests.component.cli.conftest import Shell

HEAVY = ("aiohttp", "rich", "pydantic", "sqlalchemy", "msgspec", "yarl", "asyncio", "importlib.metadata", "ssl")

HEAVY_TO_RUN = tuple(name for name in HEAVY if name != "ssl")
"""The client of the standard library imports ssl, and so do these commands."""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["session", "--help"], ["ps", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys, runpy\n"
        f"sys.argv = ['backend.ai', *{arguments!r}]\n"
        "try:\n    from ai.backend.cli.main import main; main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert "Usage:" in done.stdout
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["ps"],
        ["info", "work"],
        ["run", "--rm", "-c", "pass", "python"],
        ["start", "-t", "more", "python"],
        ["rm", "work"],
        ["logs", "work"],
        ["--output", "json", "ps"],
    ],
)
async def test_plain_commands_import_no_event_loop(shell: Shell, arguments: list[str]) -> None:
    await shell("start", "-t", "work", "python")
    tables = {"rich"} if arguments[0] in {"ps", "info"} else set()
    program = (
        "import sys\n"
        f"sys.argv = ['backend.ai', *{arguments!r}]\n"
        "from ai.backend.cli.main import main\n"
        "try: main()\n"
        "finally: print('imported', [name for name in sys.modules], file=sys.stderr)\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=shell.env
    )
    assert done.returncode == 0, done.stderr
    imported = set(ast.literal_eval(done.stderr.rpartition("imported ")[2]))
    assert not imported & (set(HEAVY_TO_RUN) - tables)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("backend.ai_client-23.9.10.dist-info", "backend.ai-client 23.9.10"),
        ("backend_ai_cli-24.3.0rc2.dist-info", "backend.ai-cli 24.3.0rc2"),
        ("backend.ai_common-25.1.0.egg-info", "backend.ai-common 25.1.0"),
    ],
)
def test_published_packages_are_found(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / "backendai-26.11.0.dist-info").mkdir()
    (tmp_path / "backend_app-1.0.dist-info").mkdir()
    assert find_conflicting_packages([str(tmp_path), "/nowhere"]) == [name]


def test_the_command_refuses_to_run_beside_them(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "backend.ai_client-23.9.10.dist-info").mkdir(parents=True)
    program = f"import sys; sys.path.append({str(packages)!r}); from ai.backend.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "pip uninstall backend.ai-client" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "ai.backend.cli", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("Usage: backend.ai run")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    command = [sys.executable, "-m", "ai.backend.cli.main", "completion", shell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "_BACKEND_AI_COMPLETE" in done.stdout


def test_completion_knows_the_commands() -> None:
    env = {
        "_BACKEND_AI_COMPLETE": "bash_complete",
        "COMP_WORDS": "backend.ai st",
        "COMP_CWORD": "1",
        "PATH": "/usr/bin",
    }
    command = [sys.executable, "-m", "ai.backend.cli.main"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)
    completed = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert completed == {"start", "start-template", "status-history", "storage"}


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["--version"], 1),
        (["ps"], 1),
        (["--output", "json", "ps"], 1),
        (["run", "--rm", "-q", "-c", "print(1)", "python"], 125),
    ],
)
async def test_a_full_disk_is_told_in_one_line(shell: Shell, arguments: list[str], exit_code: int) -> None:
    full_disk = os.open("/dev/full", os.O_WRONLY)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ai.backend.cli.main", *arguments),
            stdout=full_disk,
            stderr=asyncio.subprocess.PIPE,
            env=shell.env,
        )
    finally:
        os.close(full_disk)
    _, errors = await process.communicate()
    assert (errors, process.returncode) == (b"backend.ai: No space left on device\n", exit_code)


async def test_a_refused_settings_file_ends_the_check_with_1(shell: Shell) -> None:
    done = await shell("mgr", "config", "check", "nowhere.toml")
    assert (done.code, done.out) == (1, "")
    assert "cannot read nowhere.toml" in done.err


async def test_without_a_terminal_no_editor_is_opened(shell: Shell) -> None:
    done = await shell("admin", "announcement", "update", EDITOR="false")
    assert (done.code, "use -m" in done.err) == (2, True)
