"""Run by our own interpreter (`python -I probe.py`): prints as JSON the files that a kit needs.

The libraries are those that the dynamic loader has mapped into this process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path

REQUIRED = ("aiohttp.web", "asyncssh")


def main() -> None:
    missing = []
    for name in REQUIRED:
        try:
            import_module(name)
        except ImportError:
            missing.append(name.partition(".")[0])
    standard = Path(asyncio.__file__).resolve().parents[1]
    packages: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or "." in name or name in ("__main__", "_distutils_hack"):
            continue
        path = Path(file)
        if standard not in path.resolve().parents or "site-packages" in path.parts or "dist-packages" in path.parts:
            packages[name] = str(path.parent if path.name == "__init__.py" else path)
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    mapped = {fields[5].strip() for fields in (line.split(None, 5) for line in lines) if len(fields) == 6}
    libraries = sorted(path for path in mapped if path.startswith("/") and ".so" in Path(path).name)
    facts = {
        "version": sys.version,
        "executable": str(Path(sys.executable).resolve()),
        "standard": str(standard),
        "place": f"{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": packages,
        "libraries": libraries,
        "missing": missing,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
