"""Default commands of each runtime: for "*" of a batch run, and for running a snippet of a compiled language."""

from __future__ import annotations

import os
import re
import sys

from . import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

_C_LINKER_FLAGS = "-pthread -lm -lrt -ldl"
_C_HEADERS = ["stdio", "stdlib", "string", "stdint", "stdbool", "ctype", "math", "time", "errno", "unistd"]
_C_MAIN_PATTERN = re.compile(r"\bmain\s*\(")

RUNTIMES = ("python", "bash", "c", "app")
"""`app` is an image without a language for snippets: commands, terminals and files only."""


def default_command(runtime: str, step: str) -> Optional[str]:
    """Returns the command of "*" in a step (clean, build, exec); None if the default is to do nothing."""
    if step == "clean":
        return None  # never delete by default what a mistake has put there
    commands_by_runtime: Dict[str, Dict[str, str]] = {
        "python": {
            "build": f"if [ -f setup.py ]; then {quote(sys.executable)} setup.py -q install --user; fi",
            "exec": f"{quote(sys.executable)} main.py",
        },
        "bash": {"exec": f"{quote(process.shell_argv('')[0])} main.sh"},
        "c": {"build": _c_build_command(), "exec": "./main"},
        "app": {},
    }
    return commands_by_runtime[runtime].get(step)


def snippet_command(folder: str, code: str) -> str:
    """Writes a C snippet, with main() added if needed, into `folder`; returns the command that compiles and runs it."""
    code = f'#line 1 "<input>"\n{code}\n'
    if not _C_MAIN_PATTERN.search(code):
        headers = "".join(f"#include <{header}.h>\n" for header in _C_HEADERS)
        code = f"{headers}int main(void) {{\n{code}return 0;\n}}\n"
    source_path, program_path = os.path.join(folder, "main.c"), os.path.join(folder, "main")
    with open(source_path, "w", encoding="utf-8", errors="replace") as file:
        file.write(code)
    return f"{compiler()} -o {quote(program_path)} {quote(source_path)} {_C_LINKER_FLAGS} && exec {quote(program_path)}"


def compiler() -> str:
    """Returns the name of the C compiler; `gcc` if there is none, so that the shell reports the error."""
    return quote(process.find_executable("gcc", "cc", "clang") or "gcc")


def quote(text: str) -> str:
    """Quotes `text` as one word of a shell command."""
    return "'" + text.replace("'", "'\\''") + "'"


def _c_build_command() -> str:
    return (
        "sources=(); while IFS= read -r -d '' source; do sources+=(\"$source\"); "
        "done < <(find . -name '*.c' -type f -not -path '*/.*' -print0); "
        'if [ ${#sources[@]} -eq 0 ]; then echo "no C source file to build" >&2; exit 1; fi; '
        f'{compiler()} -o main "${{sources[@]}}" {_C_LINKER_FLAGS}'
    )


def compiler_version(runtime: str) -> str:
    """Returns the version of a compiled language's compiler; empty if there is none."""
    compiler_path = process.find_executable("gcc", "cc", "clang") if runtime == "c" else None
    if compiler_path is None:
        return ""
    read_fd, write_fd = os.pipe()
    null_fd = os.open("/dev/null", os.O_RDWR)
    try:
        process.spawn(
            [compiler_path, "-dumpfullversion", "-dumpversion"], dict(os.environ), "/", (null_fd, write_fd, null_fd)
        )
        os.close(write_fd)
        write_fd = -1
        return os.read(read_fd, 64).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        for fd in (read_fd, write_fd, null_fd):
            if fd >= 0:
                os.close(fd)
