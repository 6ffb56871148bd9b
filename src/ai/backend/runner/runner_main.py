"""Entry point of the runner: `python -I -S runner_main.py --channel-fd 3 --runtime python --home /home/work`.

The file stays tiny because a script is compiled at each start. Its modules are imported under the private name
`_backendai_runner`, so that they and the user's packages do not shadow each other.
"""

import sys

PACKAGE_NAME = "_backendai_runner"


def load_package():  # type: () -> None
    """Makes the modules of this folder importable as `_backendai_runner.*` without touching `sys.path`."""
    package = type(sys)(PACKAGE_NAME)
    package.__path__ = [__file__.rpartition("/")[0] or "."]
    sys.modules[PACKAGE_NAME] = package


if __name__ == "__main__":
    load_package()
    sys.exit(__import__(PACKAGE_NAME + ".supervisor", fromlist=["main"]).main(sys.argv[1:]))
