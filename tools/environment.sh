# Sourced by ./check, ./quickstart and bench/run: finds or makes the Python environment in .venv.
# Expects the repository as the current directory. Defines: say, die, ensure_environment dev|base, VENV.

VENV="${BACKENDAI_VENV:-$PWD/.venv}"

say() { printf '%s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# The newest interpreter on the path that is young enough; nothing when there is none.
find_python() {
    for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
        command -v "$name" >/dev/null 2>&1 || continue
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { command -v "$name"; return 0; }
    done
    return 1
}

is_debian_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }

# install_packages PACKAGE...: only as root on Debian or Ubuntu; the caller has checked is_debian_root.
install_packages() {
    say "Installing Debian packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "$@" >"$LOGS/apt.log" 2>&1 && return 0
    # Most often the package lists are missing or old.
    { apt-get update -q && apt-get install -y -q --no-install-recommends "$@"; } >>"$LOGS/apt.log" 2>&1
}

# The machine's uv, or the one that fetch_uv put into the environment; nothing when there is none.
find_uv() {
    if uv --version >/dev/null 2>&1; then echo uv; elif [ -x "$VENV/bin/uv" ]; then echo "$VENV/bin/uv"; else return 1; fi
}

# Where the machine has no uv: pip fetches it, because the rest then takes a fifth of the time, in the locked versions.
fetch_uv() {
    make_venv && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv >>"$LOGS/environment.log" 2>&1
}

sync_with_uv() {
    program="$(find_uv)" || return 1
    if [ "$1" = dev ]; then set -- --inexact; else set -- --inexact --no-dev; fi
    # Copied, not linked: uv would link the file that names this checkout into its cache, and thence into other checkouts.
    UV_LINK_MODE=copy UV_PROJECT_ENVIRONMENT="$VENV" "$program" sync --locked --quiet "$@" >"$LOGS/environment.log" 2>&1
}

# Without uv: a plain venv, the locked versions are not enforced, the ranges of pyproject.toml are.
sync_with_pip() {
    make_venv
    stamp="$VENV/.backendai-$1"
    [ -e "$stamp" ] && [ ! pyproject.toml -nt "$stamp" ] && return 0
    requirements=""
    if [ "$1" = dev ]; then
        requirements="$("$VENV/bin/python" -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"]))')"
    fi
    printf '%s\n' "$requirements" >"$LOGS/requirements.txt"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$LOGS/requirements.txt" -e . >>"$LOGS/environment.log" 2>&1 &&
        touch "$stamp"
}

make_venv() {
    if ! find_python >/dev/null && is_debian_root; then
        install_packages python3 python3-venv
        find_python >/dev/null || install_packages python3.11 python3.11-venv
    fi
    python="$(find_python)" || die "Python >= 3.11 is needed and was not found (Debian: apt-get install python3 python3-venv)"
    if [ ! -x "$VENV/bin/pip" ]; then
        "$python" -m venv --clear "$VENV" >"$LOGS/environment.log" 2>&1 || {
            # Debian splits ensurepip off into a package of its own.
            is_debian_root && install_packages python3-venv && "$python" -m venv --clear "$VENV" >>"$LOGS/environment.log" 2>&1
        } || die "'$python -m venv' failed (Debian: apt-get install python3-venv); see $LOGS/environment.log"
    fi
}

# Byte code of what is installed (uv makes none) and of the sources: without it every process compiles what it imports,
# and where PYTHONDONTWRITEBYTECODE is set it does so each time. Not necessary, hence never an error.
compile_all() {
    stamp="$VENV/.backendai-compiled"
    if [ ! -e "$stamp" ] || [ uv.lock -nt "$stamp" ] || [ -n "$(find "$VENV"/lib/python3*/site-packages -maxdepth 1 -newer "$stamp" -name '*.dist-info' -print -quit)" ]; then
        "$VENV/bin/python" -m compileall -q -j 0 "$VENV"/lib/python3*/site-packages >/dev/null 2>&1
        touch "$stamp" 2>/dev/null
    fi
    "$VENV/bin/python" -m compileall -q src >/dev/null 2>&1
    return 0
}

# ensure_environment dev|base: afterwards $VENV/bin/python runs the project (and its tools, with dev).
ensure_environment() {
    LOGS="$PWD/.cache/logs"
    mkdir -p "$LOGS" || die "cannot write to $PWD: clone the project into a folder of your own"
    find_uv >/dev/null || fetch_uv
    sync_with_uv "$1" || sync_with_pip "$1" ||
        { tail -n 15 "$LOGS/environment.log" >&2; die "The Python environment could not be made; see $LOGS/environment.log"; }
    compile_all
}
