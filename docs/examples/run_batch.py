"""Upload files, build them and run a command."""

import tempfile
from pathlib import Path

from console import show

from ai.backend.client.session import Session


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "mycode.py").write_text("import sys\nprint('arguments:', sys.argv[1:])\n")
    with Session() as api_session:
        compute_session = api_session.ComputeSession.get_or_create("python", resources={"cpu": 1, "mem": "256m"})
        try:
            compute_session.upload(["mycode.py"], basedir=folder)
            opts = {"build": "*", "exec": "python mycode.py arg1 arg2"}
            result = compute_session.execute(mode="batch", opts=opts)
            while True:
                show(result.get("console") or [])
                if result["status"] == "finished":
                    print("exit code", result["exitCode"])
                    break
                result = compute_session.execute(result["runId"], mode="continue")
        finally:
            compute_session.destroy()


if __name__ == "__main__":
    main()
