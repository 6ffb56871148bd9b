"""The command as a user types it, against an API that verifies signatures."""

import asyncio
import json
import re
import signal

import pytest

from tests.component.cli.conftest import Shell
from tests.support.fake_api import ACCESS_KEY, FakeApi


async def test_run_prints_what_the_program_prints(shell: Shell, api: FakeApi) -> None:
    done = await shell("run", "--rm", "-r", "cpu=1", "-r", "mem=256m", "-c", 'print("hello world")', "python")
    assert (done.code, done.out) == (0, "hello world\n")
    for told in ("started", "PENDING → RUNNING", "mock: Mock Device (mock-0)", "i-fake"):
        assert told in done.err
    assert "err\n" in done.err
    assert not api.sessions


async def test_quiet_run_says_nothing_else(shell: Shell) -> None:
    done = await shell("run", "--rm", "-q", "-c", 'print("x")', "python")
    assert (done.out, done.err) == ("x\n", "err\n")


async def test_a_run_without_rm_leaves_its_session(shell: Shell, api: FakeApi) -> None:
    done = await shell("run", "-t", "stays", "-c", 'print("x")', "python")
    assert api.find("stays").status == "RUNNING"
    assert "session stays stays; `backend.ai rm stays` ends it" in done.err
    done = await shell("ps", "--name-only")
    assert done.out == "stays\n"


async def test_exit_codes_are_those_of_the_program(shell: Shell) -> None:
    assert (await shell("run", "--rm", "--exec", "exit 7", "c")).code == 7
    assert (await shell("run", "--rm", "-c", "raise ValueError", "python")).code == 1
    assert (await shell("run", "--rm", "-c", "1")).code == 2  # no image
    assert (await shell("run", "--rm", "python")).code == 2  # nothing to run


async def test_what_the_platform_refuses_is_one_line_and_125(shell: Shell) -> None:
    done = await shell("run", "--rm", "-c", "1", "")
    assert done.code == 125
    assert done.err.splitlines() == ["backend.ai: malformed (image: required) [400 invalid-api-params]"]


async def test_a_dead_endpoint_is_one_line(shell: Shell) -> None:
    done = await shell("ps", BACKEND_ENDPOINT="http://127.0.0.1:9")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "backend.ai up" in done.err


async def test_missing_keys_say_what_to_do(shell: Shell, api: FakeApi) -> None:
    folder = shell.folder / "backend.ai"
    folder.mkdir()
    (folder / "env.sh").touch()
    done = await shell("ps", BACKEND_ACCESS_KEY="", XDG_DATA_HOME=str(shell.folder))
    assert done.code == 1
    del shell.env["BACKEND_ACCESS_KEY"]
    done = await shell("ps", XDG_DATA_HOME=str(shell.folder))
    assert f"source {folder}/env.sh" in done.err
    done = await shell("ps", XDG_DATA_HOME="/nowhere")
    assert "backend.ai up" in done.err
    assert done.out == ""


async def test_input_is_asked_for_and_sent(shell: Shell) -> None:
    done = await shell("run", "--rm", "-q", "-c", "input()", "python", stdin="Lablup\n")
    assert done.out == "? got Lablup\n"
    done = await shell("run", "--rm", "-q", "-c", "getpass()", "python", stdin="")
    assert done.out == "? got \x04\n"  # the input has ended


async def test_files_are_uploaded_and_executed(shell: Shell, api: FakeApi) -> None:
    (shell.folder / "sub").mkdir()
    (shell.folder / "sub" / "my.py").write_text("print(1)")
    done = await shell("run", "-t", "batch", "--exec", "python sub/my.py", "python", "sub/my.py")
    assert done.out == "executed python sub/my.py\n"
    assert api.find("batch").files == {"sub/my.py": b"print(1)"}
    assert "output file out.txt" in done.err
    done = await shell("run", "-t", "batch", "--rm", "python", "./sub/my.py")
    assert done.out == "executed python sub/my.py\n"
    (shell.folder / "main.py").write_text("print(1)")
    done = await shell("run", "-t", "batch", "--rm", "python", "main.py", "sub/my.py")
    assert done.out == "built\nexecuted *\n"


async def test_a_file_of_another_folder_runs(
    shell: Shell, api: FakeApi, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = tmp_path_factory.mktemp("elsewhere") / "my.py"
    script.write_text("print(1)")
    done = await shell("run", "-t", "elsewhere", "python", str(script))
    assert done.out == "executed python my.py\n"
    assert api.find("elsewhere").files == {"my.py": b"print(1)"}


async def test_arguments_of_a_program_are_led_to_exec(shell: Shell, api: FakeApi) -> None:
    (shell.folder / "my.py").write_text("print(1)")
    done = await shell("run", "python", "my.py", "a", "b")
    assert done.code == 2
    command = "backend.ai run --exec 'python my.py a b' python my.py"
    assert (
        f"there is no file 'a'; FILES are only uploaded, and a program gets its arguments by --exec: `{command}`"
        in (" ".join(done.err.split()))
    )
    done = await shell("run", "python", "my.py", "--epochs", "3")
    assert done.code == 2
    assert "No such option '--epochs'; a program gets its options by --exec: `backend.ai run" in done.err
    assert not api.requests


async def test_sessions_of_several_cases_that_stay_are_named_once(shell: Shell, api: FakeApi) -> None:
    done = await shell("run", "-t", "n", "-e", "N=$X", "--env-range=X=case:1,2", "-c", "1", "python")
    assert "2 sessions stay; `backend.ai rm n-1 n-2` ends them, and --rm does so at once" in done.err
    done = await shell("run", "-t", "n-1", "-c", "1", "python")
    assert "ends it" not in done.err  # it was there before
    assert len(api.sessions) == 2


async def test_every_combination_runs(shell: Shell, api: FakeApi) -> None:
    done = await shell(
        "run", "--rm", "-t", "many", "-e", "CASENO=$X-${Y}", "--env-range=X=case:1,2", "--env-range=Y=range:0,3,1",
        "-c", 'import os; os.environ["CASENO"]', "python",
    )  # fmt: skip
    assert done.code == 0, done.err
    expected = {f"[X={x} Y={y}] {x}-{y}" for x in (1, 2) for y in (0, 1, 2)}
    assert set(done.out.splitlines()) == expected
    assert "6 of 6 cases succeeded" in done.err
    created = [one for one in api.requests if one.method == "POST" and one.path == "/session"]
    assert len(created) == 6
    assert not api.sessions


async def test_a_failed_case_fails_the_whole(shell: Shell) -> None:
    done = await shell("--output", "json", "run", "--rm", "--exec", "exit $N", "--exec-range=N=case:0,5", "c")
    assert done.code == 5
    assert [(one["values"], one["exit_code"]) for one in json.loads(done.out)] == [({"N": "0"}, 0), ({"N": "5"}, 5)]


async def test_media_is_saved(shell: Shell) -> None:
    done = await shell("run", "--rm", "-c", "plot", "python")
    assert "saved as output-1.png" in done.err
    assert (shell.folder / "output-1.png").read_bytes() == b"\x89PNG"
    assert (shell.folder / "output-2.html").read_text() == "<b>x</b>"


async def test_ctrl_c_interrupts_and_cleans_up(shell: Shell, api: FakeApi) -> None:
    process = await shell.start("run", "--rm", "-c", "sleep", "python")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"tick\n"
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert b"KeyboardInterrupt" in err
    assert not api.sessions


async def test_ctrl_c_while_waiting_cancels_the_session(shell: Shell, api: FakeApi) -> None:
    api.pending_creations = True
    process = await shell.start("run", "--rm", "-c", "1", "python")
    assert process.stderr is not None
    assert b"is queued" in await process.stderr.readline()
    assert b"PENDING: no-available-instances" in await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert not api.sessions


async def test_max_wait_leaves_the_session_in_the_queue(shell: Shell, api: FakeApi) -> None:
    api.pending_creations = True
    done = await shell("run", "--max-wait", "1", "-t", "waits", "-c", "1", "python")
    assert done.code == 124
    assert "no-available-instances" in done.err
    assert api.find("waits").status == "PENDING"
    done = await shell("run", "--enqueue-only", "python")
    assert done.code == 0
    assert "nothing was run" in done.out


async def test_the_life_of_a_session(shell: Shell, api: FakeApi) -> None:
    assert "services: ttyd" in (await shell("start", "-t", "mine", "python")).out
    assert "mine" in (await shell("ps")).out
    assert "mock: Mock Device (mock-0)" in (await shell("info", "mine")).out
    assert "RUNNING" in (await shell("status-history", "mine")).out
    (shell.folder / "a.txt").write_text("content")
    assert (await shell("upload", "mine", "a.txt")).code == 0
    assert "a.txt" in (await shell("ls", "mine")).out
    (shell.folder / "a.txt").unlink()
    assert (await shell("download", "mine", "a.txt")).code == 0
    assert (shell.folder / "a.txt").read_text() == "content"
    await shell("run", "-q", "-t", "mine", "-c", 'print("x")', "python")
    assert (await shell("logs", "mine")).out == 'ran print("x")\n'
    assert (await shell("top", "mine")).out.splitlines()[-1].split() == ["main1", "7", "12.5%", "3.0", "MiB", "a", "b"]
    assert (await shell("complete", "mine", "pri")).out == "print\nprintf\n"
    assert (await shell("restart", "mine")).out == "mine: restarted\n"
    assert (await shell("interrupt", "mine")).code == 0
    assert (await shell("rename", "mine", "yours")).code == 0
    done = await shell("rm", "yours", "nobody")
    assert done.code == 1
    assert "yours: terminated" in done.out
    assert "nobody: " in done.err
    assert not api.sessions


async def test_the_published_tree_has_the_same_commands(shell: Shell) -> None:
    assert (await shell("session", "create", "-t", "mine", "python")).code == 0
    listed = json.loads((await shell("session", "list", "--output", "json")).out)
    assert [one["name"] for one in listed["items"]] == ["mine"]
    assert json.loads((await shell("admin", "session", "list", "-f", "id,status", "--output=json")).out)["count"] == 1
    assert "cpu 1/4" in (await shell("admin", "agent", "list")).out
    assert ACCESS_KEY in (await shell("admin", "keypair", "info")).out
    assert (await shell("session", "destroy", "mine", "-s")).out == "mine: cpu_used 12 ms\nmine: terminated\n"


async def test_json_everywhere(shell: Shell) -> None:
    assert json.loads((await shell("--output", "json", "start", "-t", "mine", "python")).out)["created"] is True
    for command in (
        "info mine",
        "status-history mine",
        "logs mine",
        "top mine",
        "ls mine",
        "config",
        "keypair info",
        "restart mine",
    ):
        done = await shell("--output", "json", *command.split())
        assert done.code == 0, done.err
        assert json.loads(done.out) is not None
    error = json.loads((await shell("--output", "json", "info", "nobody")).out)["error"]
    assert (error["code"], error["status"]) == ("session-not-found", 404)
    ran = json.loads(
        (await shell("--output", "json", "run", "-t", "mine", "--rm", "-s", "-c", "print('a')", "python")).out
    )
    assert (ran["exit_code"], ran["console"][0], ran["stats"]["cpu_used"]["current"]) == (0, ["stdout", "a"], "12")


async def test_events_until_the_end(shell: Shell, api: FakeApi) -> None:
    await shell("start", "-t", "mine", "python")
    api.events = [("session_started", {"sessionId": "x"}), ("session_terminated", {"reason": "user-requested"})]
    done = await shell("events", "mine")
    assert [line.split()[0] for line in done.out.splitlines()] == ["session_started", "session_terminated"]
    assert done.err == "Listening to mine, which is RUNNING; Ctrl-C ends that.\n"
    lines = [json.loads(line) for line in (await shell("--output", "json", "events", "mine")).out.splitlines()]
    assert lines[1] == {"event": "session_terminated", "data": {"reason": "user-requested"}}


async def test_a_quiet_run_says_once_why_it_waits(shell: Shell, api: FakeApi) -> None:
    api.pending_creations = True
    done = await shell("run", "-q", "--max-wait", "2", "-t", "waits", "-c", "1", "python")
    assert done.code == 124
    assert done.err.splitlines()[0] == "  waits is PENDING: no-available-instances"
    assert len(done.err.splitlines()) == 2


async def test_a_session_that_waits_says_how_to_learn_for_what(shell: Shell, api: FakeApi) -> None:
    api.pending_creations = True
    done = await shell("run", "--max-wait", "2", "-t", "waits", "-c", "1", "python")
    assert "`backend.ai explain waits` names the sessions that hold what it needs" in done.err


async def test_a_log_is_followed_to_the_end(shell: Shell, api: FakeApi) -> None:
    started = await shell("start", "--type", "batch", "-c", "x", "-t", "batch", "python")
    assert "next: backend.ai logs --follow batch | backend.ai watch batch" in started.err
    session = api.find("batch")
    session.log = "one\n"
    process = await shell.start("logs", "--follow", "batch")
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"one\n"
    session.log += "two\n"
    assert await asyncio.wait_for(process.stdout.readline(), 30) == b"two\n"
    session.log, session.status, session.result = session.log + "three", "TERMINATED", "SUCCESS"
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out) == (0, b"three")
    done = await shell("watch", "--log", session.id)
    assert done.out == f"one\ntwo\nthree{session.id}: TERMINATED, SUCCESS\n"
    assert (await shell("logs", "-f", "--output", "json", session.id)).code == 2


async def test_a_file_too_large_to_upload_has_another_way(shell: Shell) -> None:
    await shell("start", "-t", "mine", "python")
    (shell.folder / "big").write_bytes(bytes(1_500_000))
    done = await shell("upload", "mine", "big")
    assert done.code == 1
    assert "the largest is big with 1.4 MiB: copy it by `backend.ai scp mine big :`" in done.err


async def test_every_user_sees_the_images(shell: Shell) -> None:
    done = await shell("image", "list")
    assert done.out.splitlines()[1].split() == ["host/python", "x86_64", "3.11", "0", "B", "python", "mem=64m", "yes"]
    assert "resource_limits" not in (await shell("image", "list", "--output", "json")).out.split('"installed"')[0]


async def test_a_list_is_printed_anew(shell: Shell, api: FakeApi) -> None:
    process = await shell.start("ps", "--follow")
    assert process.stdout is not None
    assert b"There are no sessions" in await asyncio.wait_for(process.stdout.readline(), 30)
    await shell("start", "-t", "mine", "python")
    while b"mine" not in await asyncio.wait_for(process.stdout.readline(), 30):
        pass
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert (await shell("ps", "--follow", "--output", "json")).code == 2


async def test_config_hides_the_secret(shell: Shell) -> None:
    done = await shell("config")
    assert ACCESS_KEY in done.out
    assert shell.env["BACKEND_SECRET_KEY"] not in done.out + done.err
    assert "manager 26.11.0" in done.out
    bad = await shell("config", BACKEND_READ_TIMEOUT="soon")
    assert (bad.code, bad.err) == (
        1,
        "backend.ai: BACKEND_READ_TIMEOUT is 'soon': could not convert string to float: 'soon'\n",
    )


async def test_a_first_try_that_breaks_is_made_again_as_the_same_creation(shell: Shell, api: FakeApi) -> None:
    api.fail_next = 1
    done = await shell("run", "-q", "-t", "once", "-c", 'print("x")', "python")
    assert (done.code, done.out) == (0, "x\n")
    creations = [one for one in api.requests if one.method == "POST" and one.path == "/session"]
    assert len({one.headers["X-BackendAI-Client-Token"] for one in creations}) == 1
    assert len(creations) == 2
    assert len(api.sessions) == 1


@pytest.mark.parametrize(
    ("status", "result", "exit_code", "code"),
    [
        ("TERMINATED", "SUCCESS", 0, 0),
        ("TERMINATED", "FAILURE", 3, 3),
        ("TERMINATED", "FAILURE", None, 1),
        ("TERMINATED", "UNDEFINED", 137, 0),
        ("ERROR", "UNDEFINED", None, 1),
        ("CANCELLED", "UNDEFINED", None, 1),
    ],
)
async def test_watch_tells_the_result_of_what_has_ended(
    shell: Shell, api: FakeApi, status: str, result: str, exit_code: int | None, code: int
) -> None:
    await shell("start", "-t", "ended", "python")
    session = api.find("ended")
    session.status, session.result, session.exit_code = status, result, exit_code
    done = await shell("watch", session.id)
    assert (done.code, done.out) == (code, f"{session.id}: {status}, {result}\n"), done.err


HOSTILE = "a\x1b]0;owned\x07[red]b[/red]\x1b[2J\x9b1m"


async def test_a_terminal_gets_names_of_users_literally_in_80_columns(shell: Shell, api: FakeApi) -> None:
    await shell("start", "-t", "mine", "python")
    session = api.find("mine")
    session.name = HOSTILE
    session.body.update(image=f"python:{HOSTILE}", tag=HOSTILE)
    for command in (
        ("ps",),
        ("ps", "--detail"),
        ("ps", "--wide"),
        ("ps", "-f", "name,image,tag"),
        ("info", session.id),
    ):
        printed = await shell.on_terminal(*command)
        text = re.sub(r"\x1b\[[0-9;]*m", "", printed).replace("\r\n", "\n")
        assert all(char.isprintable() or char == "\n" for char in text), printed
        assert "[red]" in text
        if command in (("ps",), ("ps", "--detail"), ("info", session.id)):
            assert all(len(line) <= 80 for line in text.splitlines()), text


async def test_no_color_is_honoured(shell: Shell, api: FakeApi) -> None:
    await shell("start", "-t", "mine", "python")
    assert "\x1b[32mRUNNING" in await shell.on_terminal("ps")
    assert "\x1b[32m" not in await shell.on_terminal("ps", NO_COLOR="1")
    assert "\x1b" not in (await shell("ps")).out


async def test_lists_show_short_ids(shell: Shell, api: FakeApi) -> None:
    await shell("start", "-t", "mine", "python")
    session_id = api.find("mine").id
    lines = (await shell("ps")).out.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:2] == ["mine", session_id[:8]]
    assert session_id in (await shell("ps", "--wide")).out
    assert session_id in (await shell("ps", "-f", "id")).out


async def complete(shell: Shell, line: str) -> list[str]:
    """Returns what bash offers at the end of a command line."""
    words = line.split(" ")
    completing = {"_BACKEND_AI_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = await shell(**completing)
    assert done.err == ""
    return [offer.partition(",")[2] for offer in done.out.splitlines() if offer]


async def test_a_shell_completes_names_of_the_cluster(shell: Shell, api: FakeApi) -> None:
    await shell("start", "-t", "mine", "python")
    await shell("start", "-t", "yours", "python")
    assert await complete(shell, "backend.ai info m") == ["mine"]
    assert await complete(shell, "backend.ai rm mine y") == ["yours"]
    assert await complete(shell, "backend.ai run py") == ["python"]
    assert await complete(shell, "backend.ai start -r m") == ["mem=", "mock.device="]
    assert await complete(shell, "backend.ai admin agent info i-") == ["i-fake"]
    api.find("mine").name = "m\x1b[31m"
    assert await complete(shell, "backend.ai info m") == []
    shell.env["BACKEND_ENDPOINT"] = "http://127.0.0.1:9"
    assert await complete(shell, "backend.ai info m") == []
