"""Rules that hold for every lane: what a test may need from the machine, and which skips CI accepts."""

pytest_plugins = ("tests.support.docker_engine", "tests.support.skips")
