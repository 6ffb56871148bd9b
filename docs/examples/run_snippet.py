"""Run a snippet in query mode, and answer it when it asks."""

import getpass
from typing import Any

from console import show

from ai.backend.client.session import Session

CODE = 'name = input("Who are you? ")\nprint(f"Hello, {name}!")'


def main() -> None:
    with Session() as api_session:
        my_session = api_session.ComputeSession.get_or_create("python", resources={"cpu": 1, "mem": "256m"})
        run_id: str | None = None
        mode, code = "query", CODE
        try:
            while True:
                result: dict[str, Any] = my_session.execute(run_id, code, mode=mode)
                run_id = result["runId"]  # names this run in the calls that follow
                show(result.get("console") or [])
                if result["status"] == "finished":
                    break
                if result["status"] == "waiting-input":
                    is_password = result["options"].get("is_password", False)
                    mode, code = "input", getpass.getpass("") if is_password else input()
                else:
                    mode, code = "continue", ""
        finally:
            my_session.destroy()


if __name__ == "__main__":
    main()
