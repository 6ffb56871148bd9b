"""Ask the cluster for its versions; endpoint and keys come from the environment."""

from ai.backend.client.session import Session


def main() -> None:
    with Session() as api_session:
        print(api_session.System.get_versions())


if __name__ == "__main__":
    main()
