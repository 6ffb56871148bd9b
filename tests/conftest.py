"""Rules that hold for every lane: what a test may need from the machine, and which skips CI accepts."""

import signal

pytest_plugins = ("tests.support.docker_engine", "tests.support.kubernetes", "tests.support.skips")

# A shell that starts a job in the background has it ignore Ctrl-C, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
