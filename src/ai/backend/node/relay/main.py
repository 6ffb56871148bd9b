"""Entry point in a container: `python -I -S <runner>/relay/main.py --directory DIR --replay-bytes N --runtime NAME`.

In a pod `main.py prepare` runs first, `main.py pod` is the relay, `main.py reaper` the session's first process;
`main.py inner` is that of a sandbox whose relay is outside. Tiny, because a script is compiled at each start.
"""

import sys


def load_packages():  # type: () -> None
    """Makes the runner's and relay's folders importable without `sys.path`, where the user's packages are."""
    folder_of_relay = __file__.rpartition("/")[0] or "."
    for name, folder in (
        ("_backendai_relay", folder_of_relay),
        ("_backendai_runner", folder_of_relay.rpartition("/")[0] or ".."),
    ):
        package = type(sys)(name)
        package.__path__ = [folder]
        sys.modules[name] = package


if __name__ == "__main__":
    load_packages()
    role = sys.argv[1] if sys.argv[1:2] in (["inner"], ["pod"], ["prepare"], ["probe"], ["reaper"]) else "container"
    arguments = sys.argv[1:] if role == "container" else sys.argv[2:]
    sys.exit(__import__("_backendai_relay." + role, fromlist=["main"]).main(arguments))
