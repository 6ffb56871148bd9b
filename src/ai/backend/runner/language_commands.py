"""Defines the default commands of each runtime, for batch runs ("*") and for snippets of compiled languages."""

from __future__ import annotations

import os
import sys

from . import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_C_LINKER_FLAGS = "-pthread -lm -lrt -ldl"
_C_HEADERS = ["stdio", "stdlib", "string", "stdint", "stdbool", "ctype", "math", "time", "errno", "unistd"]
_COMPILERS = {"c": ("gcc", "cc", "clang"), "cpp": ("g++", "c++", "clang++")}

_GO_PACKAGES = ("bufio", "bytes", "errors", "fmt", "math", "os", "sort", "strconv", "strings", "sync", "time")
_CPP_HEADER = "#include <bits/stdc++.h>\nusing namespace std;\n"
_GO_BUILD = "if [ -f go.mod ]; then go build -o main .; else go build -o main $(ls *.go | grep -v _test.go); fi"
_RUST_BUILD = "if [ -f Cargo.toml ]; then cargo build -q --release; else rustc -o main main.rs; fi"
_RUST_EXEC = "if [ -f Cargo.toml ]; then cargo run -q --release; else ./main; fi"
_JAVA_BUILD = "find . -name '*.java' -type f -not -path '*/.*' -print0 | xargs -0 javac -d ."
_COMMANDS: Dict[str, Dict[str, str]] = {
    "app": {},
    "golang": {"build": _GO_BUILD, "exec": "./main"},
    "haskell": {"build": "ghc --make -o main main.hs", "exec": "./main"},
    "java": {"build": _JAVA_BUILD, "exec": "java -cp . Main"},
    "julia": {"exec": "julia main.jl"},
    "lua": {"exec": "lua main.lua"},
    "nodejs": {"exec": "node main.js"},
    "ocaml": {"exec": "ocaml main.ml"},
    "octave": {"exec": "octave-cli main.m"},
    "php": {"exec": "php main.php"},
    "r": {"exec": "Rscript main.R"},
    "rust": {"build": _RUST_BUILD, "exec": _RUST_EXEC},
    "scheme": {"exec": "scheme --quiet < main.scm"},
}
RUNTIMES = ("python", "bash", "c", "cpp", *_COMMANDS)
"""The runtime types (spec 03-05:77). `app` is an image without a language: commands, terminals and files only."""
SNIPPET_RUNTIMES = ("c", "cpp", "golang")
"""The runtimes whose snippets are compiled and run one by one."""
_OTHER_NAMES = {"go": "golang", "node": "nodejs", "javascript": "nodejs", "gcc": "c", "g++": "cpp"}


def runtime_of(label: str) -> str:
    """Returns the runtime for an image's label `ai.backend.runtime-type`. An unknown type gives `app`."""
    name = _OTHER_NAMES.get(label.lower(), label.lower())
    return name if name in RUNTIMES else "app"


def default_command(runtime: str, step: str) -> Optional[str]:
    """Returns the default command of a step (clean, build, exec) of a batch run, which the user requests as "*".

    Returns None if the default is to do nothing.
    """
    if step == "clean":
        return None  # never delete by default what a mistake has put there
    if runtime in _COMMANDS:
        return _COMMANDS[runtime].get(step)
    commands_by_runtime: Dict[str, Dict[str, str]] = {
        "python": {
            "build": f"if [ -f setup.py ]; then {quote(sys.executable)} setup.py -q install --user; fi",
            "exec": f"{quote(sys.executable)} main.py",
        },
        "bash": {"exec": f"{quote(process.shell_argv('')[0])} main.sh"},
        "c": {"build": _build_command("C", compiler("c"), "-name '*.c'"), "exec": "./main"},
        "cpp": {
            "build": _build_command("C++", compiler("cpp"), "'(' -name '*.cpp' -o -name '*.cc' -o -name '*.cxx' ')'"),
            "exec": "./main",
        },
    }
    return commands_by_runtime[runtime].get(step)


def snippet_steps(runtime: str, folder: str, code: str) -> List[Tuple[str, str]]:
    """Writes a snippet of C, C++ or Go into `folder`, with main() if needed; returns the steps that execute it."""
    if runtime == "golang":
        program_path = os.path.join(folder, "main.go")
        with open(program_path, "w", encoding="utf-8", errors="replace") as file:
            file.write(_go_program(code))
        return [("exec", f"exec go run {quote(program_path)}")]
    import re

    code = f'#line 1 "<input>"\n{code}\n'
    if not re.search(r"\bmain\s*\(", code):
        include_lines = "".join(f"#include <{header}.h>\n" for header in _C_HEADERS) if runtime == "c" else _CPP_HEADER
        code = f"{include_lines}int main(void) {{\n{code}return 0;\n}}\n"
    source_path, program_path = os.path.join(folder, f"main.{runtime}"), os.path.join(folder, "main")
    with open(source_path, "w", encoding="utf-8", errors="replace") as file:
        file.write(code)
    program = quote(program_path)
    compilation = f"exec {compiler(runtime)} -o {program} {quote(source_path)} {_C_LINKER_FLAGS}"
    return [("compile", compilation), ("exec", f"exec {program}")]


def _go_program(code: str) -> str:
    """Returns a whole Go program. Plain statements are put into main(), with the usual packages that they name."""
    import re

    if re.search(r"^package ", code, re.M):
        return code
    named_packages = [name for name in _GO_PACKAGES if re.search(r"\b%s\." % name, code)]
    import_lines = "".join(f'import "{name}"; ' for name in named_packages)
    program_body = code if re.search(r"^func main\(", code, re.M) else f"func main() {{\n//line <input>:1\n{code}\n}}"
    return f"package main\n{import_lines}\n//line <input>:1\n{program_body}\n"


def compiler(runtime: str) -> str:
    """Returns the name of an installed C or C++ compiler.

    If none is installed, returns the usual name, so that the shell reports the error.
    """
    compiler_names = _COMPILERS[runtime]
    return quote(process.find_executable(*compiler_names) or compiler_names[0])


def quote(text: str) -> str:
    """Quotes `text` as one word of a shell command."""
    return "'" + text.replace("'", "'\\''") + "'"


def _build_command(language: str, compiler_path: str, name_tests: str) -> str:
    return (
        "sources=(); while IFS= read -r -d '' source; do sources+=(\"$source\"); "
        f"done < <(find . {name_tests} -type f -not -path '*/.*' -print0); "
        f'if [ ${{#sources[@]}} -eq 0 ]; then echo "no {language} source file to build" >&2; exit 1; fi; '
        f'{compiler_path} -o main "${{sources[@]}}" {_C_LINKER_FLAGS}'
    )


def compiler_version(runtime: str) -> str:
    """Returns the version of a compiled language's compiler; empty if there is none."""
    compiler_path = process.find_executable(*_COMPILERS[runtime]) if runtime in _COMPILERS else None
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
