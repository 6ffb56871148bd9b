"""Entry point of the kit: `python run.py sshd --port 2200 --host 127.0.0.1`.

The modules beside it are imported under a private name, and the libraries come from the kit.
"""

import sys
from importlib import import_module
from pathlib import Path

PACKAGE_NAME = "_backendai_kit"


def main() -> None:
    """Runs the program that the first argument names."""
    folder = Path(__file__).resolve().parent
    sys.path.append(str(folder.parent / "site"))
    package = type(sys)(PACKAGE_NAME)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE_NAME] = package
    name = sys.argv.pop(1)
    import_module(f"{PACKAGE_NAME}.{name}").run()


if __name__ == "__main__":
    main()
