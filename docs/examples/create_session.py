"""Create a session and destroy it."""

from ai.backend.client.session import Session


def main() -> None:
    with Session() as api_session:
        my_session = api_session.ComputeSession.get_or_create("python", resources={"cpu": 1, "mem": "256m"})
        print(my_session.id)
        my_session.destroy()


if __name__ == "__main__":
    main()
