"""Wheels of other versions of this novad, for tests of its updates: with what a novad needs of Nova, and no more."""

from __future__ import annotations

import pathlib
import zipfile
from collections.abc import Mapping

import nova

_ROOT = pathlib.Path(nova.__file__).parent


def wheel(directory: pathlib.Path, version: str, changed: Mapping[str, tuple[str, str]] | None = None) -> pathlib.Path:
    """``changed``: {path below nova: (a text of that file, what stands there instead)}"""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"nova-{version}-py3-none-any.whl"
    changed = {"__init__.py": (nova.__version__, version), **(changed or {})}
    files = [_ROOT / "__init__.py", _ROOT / "cmd/__init__.py", _ROOT / "cmd/novad.py",
             *_ROOT.glob("common/*.py"), *_ROOT.glob("novad/**/*.py")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            name, text = str(file.relative_to(_ROOT)), file.read_text()
            if name in changed:
                assert changed[name][0] in text, name
                text = text.replace(*changed[name])
            archive.writestr(f"nova/{name}", text)
        archive.writestr(f"nova-{version}.dist-info/METADATA", f"Name: nova\nVersion: {version}\n")
    return path
