"""Default commands of each runtime: for "*" of a batch run, and for running a snippet of a compiled language."""

from __future__ import annotations

import os
import re
import sys

from . import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

_C_FLAGS = "-pthread -lm -lrt -ldl"
_C_HEADERS = ["stdio", "stdlib", "string", "stdint", "stdbool", "ctype", "math", "time", "errno", "unistd"]
_C_MAIN = re.compile(r"\bmain\s*\(")

RUNTIMES = ("python", "bash", "c", "app")
"""`app` is an image without a language for snippets: commands, terminals and files only."""


def default_command(runtime: str, step: str) -> Optional[str]:
    """Returns the command of "*" in a step (clean, build, exec); None if the default is to do nothing."""
    if step == "clean":
        return None  # never delete by default what a mistake has put there
    commands: Dict[str, Dict[str, str]] = {
        "python": {
            "build": f"if [ -f setup.py ]; then {quote(sys.executable)} setup.py -q install --user; fi",
            "exec": f"{quote(sys.executable)} main.py",
        },
        "bash": {"exec": f"{quote(process.shell_argv('')[0])} main.sh"},
        "c": {"build": _c_build(), "exec": "./main"},
        "app": {},
    }
    return commands[runtime].get(step)


def snippet_command(folder: str, code: str) -> str:
    """Writes a C snippet, with main() added if needed, into `folder`; returns the command that compiles and runs it."""
    if not _C_MAIN.search(code):
        headers = "".join(f"#include <{name}.h>\n" for name in _C_HEADERS)
        code = f'{headers}int main(void) {{\n#line 1 "<input>"\n{code}\nreturn 0;\n}}\n'
    else:
        code = f'#line 1 "<input>"\n{code}\n'
    source, program = os.path.join(folder, "main.c"), os.path.join(folder, "main")
    with open(source, "w", encoding="utf-8", errors="replace") as file:
        file.write(code)
    return f"{compiler()} -o {quote(program)} {quote(source)} {_C_FLAGS} && exec {quote(program)}"


def compiler() -> str:
    """Returns the name of the C compiler; `gcc` if there is none, so that the shell reports the error."""
    return quote(process.find_executable("gcc", "cc", "clang") or "gcc")


def quote(text: str) -> str:
    """Quotes `text` as one word of a shell command."""
    return "'" + text.replace("'", "'\\''") + "'"


def _c_build() -> str:
    return (
        "sources=(); while IFS= read -r -d '' source; do sources+=(\"$source\"); "
        "done < <(find . -name '*.c' -type f -not -path '*/.*' -print0); "
        'if [ ${#sources[@]} -eq 0 ]; then echo "no C source file to build" >&2; exit 1; fi; '
        f'{compiler()} -o main "${{sources[@]}}" {_C_FLAGS}'
    )


def compiler_version(runtime: str) -> str:
    """Returns the version of a compiled language's compiler; empty if there is none."""
    program = process.find_executable("gcc", "cc", "clang") if runtime == "c" else None
    if program is None:
        return ""
    read, write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    try:
        process.spawn([program, "-dumpfullversion", "-dumpversion"], dict(os.environ), "/", (null, write, null))
        os.close(write)
        write = -1
        return os.read(read, 64).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        for fd in (read, write, null):
            if fd >= 0:
                os.close(fd)
