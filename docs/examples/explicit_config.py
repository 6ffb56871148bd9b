"""Say where the cluster is in the program itself."""

import os

from ai.backend.client.config import APIConfig
from ai.backend.client.session import Session


def main() -> None:
    config = APIConfig(
        endpoint=os.environ.get("BACKEND_ENDPOINT", "http://127.0.0.1:8091"),
        domain="default",
        group="default",  # the project to use
    )
    with Session(config=config) as api_session:
        print(api_session.System.get_versions())


if __name__ == "__main__":
    main()
