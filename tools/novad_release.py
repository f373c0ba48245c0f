"""Adds a release of novad to a directory that update_url may name: ``python -m tools.novad_release DIRECTORY WHEEL…``.

The first wheel is Nova's own and says the version; others are what it needs beyond what is installed. With --key FILE
(a private key of Ed25519, PEM: ``openssl genpkey -algorithm ed25519``) the list of releases is signed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import pathlib
import shutil
from collections.abc import Sequence

from nova.novad.releases import number


def add(directory: pathlib.Path, wheels: Sequence[pathlib.Path], key: pathlib.Path | None = None) -> None:
    """Raises ValueError: the first wheel has no version of a release."""
    version = wheels[0].name.split("-")[1]
    number(version)
    directory.mkdir(parents=True, exist_ok=True)
    index = directory / "releases.json"
    known = json.loads(index.read_text())["releases"] if index.exists() else []
    entries = []
    for wheel in wheels:
        if wheel.resolve().parent != directory.resolve():
            shutil.copy(wheel, directory / wheel.name)
        content = wheel.read_bytes()
        entries.append({"file": wheel.name, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)})
    known = [one for one in known if one["version"] != version] + [{"version": version, "wheels": entries}]
    index.write_text(json.dumps({"releases": known}, indent=1))
    if key is not None:
        sign(index, key)


def sign(index: pathlib.Path, key: pathlib.Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(key.read_bytes(), None)
    if not isinstance(private, Ed25519PrivateKey):
        raise SystemExit(f"{key} is no key of Ed25519")
    index.with_name(f"{index.name}.sig").write_bytes(base64.b64encode(private.sign(index.read_bytes())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("wheels", type=pathlib.Path, nargs="+")
    parser.add_argument("--key", type=pathlib.Path)
    given = parser.parse_args()
    add(given.directory, given.wheels, given.key)
