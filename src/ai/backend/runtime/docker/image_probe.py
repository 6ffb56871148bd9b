"""Runs once in a container of an image: reports what the image provides, and compiles the runner for its Python.

`python -I -S -c <this file> RUNNER`. Standard library of any Python 3; prints one line that begins with MARK.
"""

import os
import sys

REPORT_MARK = "BACKENDAI-IMAGE "


def read(file_path):
    # type: (str) -> str
    try:
        with open(file_path, errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def find(*program_names):
    # type: (*str) -> str
    for program_name in program_names:
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            program_path = os.path.join(folder, program_name)
            if os.path.isfile(program_path) and os.access(program_path, os.X_OK):
                return program_path
    return ""


def compile_runner(runner_folder):
    # type: (str) -> None
    import py_compile

    for folder, _, file_names in os.walk(runner_folder):
        for file_name in file_names:
            if file_name.endswith(".py"):
                try:
                    py_compile.compile(os.path.join(folder, file_name), doraise=True)
                except (OSError, py_compile.PyCompileError):
                    return


def main(runner_folder):
    # type: (str) -> None
    import json

    if sys.version_info[:2] >= (3, 8):
        compile_runner(runner_folder)
    report = {
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "bash": find("bash"),
        "shell": find("bash", "sh"),
        "passwd": read("/etc/passwd"),
        "group": read("/etc/group"),
    }
    sys.stdout.write(REPORT_MARK + json.dumps(report) + "\n")


if __name__ == "__main__":
    main(sys.argv[-1])
