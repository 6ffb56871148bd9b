"""Run by our own interpreter (`python -I probe.py`): prints as JSON the files that a kit needs.

The libraries are those that the dynamic loader has mapped into this process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path

REQUIRED_MODULES = ("aiohttp.web", "asyncssh")


def main() -> None:
    missing_modules = []
    for name in REQUIRED_MODULES:
        try:
            import_module(name)
        except ImportError:
            missing_modules.append(name.partition(".")[0])
    library_directory = Path(asyncio.__file__).resolve().parents[1]
    packages: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        module_file = getattr(module, "__file__", None)
        if not module_file or "." in name or name in ("__main__", "_distutils_hack"):
            continue
        path = Path(module_file)
        if (
            library_directory not in path.resolve().parents
            or "site-packages" in path.parts
            or "dist-packages" in path.parts
        ):
            packages[name] = str(path.parent if path.name == "__init__.py" else path)
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    mapped_paths = {
        mapping_fields[5].strip()
        for mapping_fields in (line.split(None, 5) for line in lines)
        if len(mapping_fields) == 6
    }
    libraries = sorted(path for path in mapped_paths if path.startswith("/") and ".so" in Path(path).name)
    kit_files = {
        "version": sys.version,
        "executable": str(Path(sys.executable).resolve()),
        "standard": str(library_directory),
        "place": f"{sys.platlibdir}/python{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": packages,
        "libraries": libraries,
        "missing": missing_modules,
    }
    print(json.dumps(kit_files))


if __name__ == "__main__":
    main()
