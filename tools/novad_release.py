"""Add a release of novad to a directory for update_url: ``python -m tools.novad_release DIRECTORY --key FILE WHEEL…``.

The first wheel is that of Nova and determines the version. The remaining wheels are its additional dependencies. The
list of releases is signed with the key (an Ed25519 private key, PEM: ``openssl genpkey -algorithm ed25519``) and
expires after --days. Without wheels, the existing list is signed again with a new expiry.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import hashlib
import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from nova.novad.release.launcher import number

DAYS = 90


def add(directory: pathlib.Path, wheels: Sequence[pathlib.Path], key: pathlib.Path, days: float = DAYS) -> None:
    """Write and sign the list of releases. Raises ValueError if the version of the first wheel is not a release."""
    directory.mkdir(parents=True, exist_ok=True)
    index = directory / "releases.json"
    releases = json.loads(index.read_text())["releases"] if index.exists() else []
    if wheels:
        releases = _with(releases, directory, wheels)
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    index.write_text(json.dumps({"expires": f"{expires:%Y-%m-%dT%H:%M:%SZ}", "releases": releases}, indent=1))
    sign(index, key)


def _with(releases: list[Any], directory: pathlib.Path, wheels: Sequence[pathlib.Path]) -> list[Any]:
    """Copy the wheels to the directory, and return the list of releases including the new release."""
    version = wheels[0].name.split("-")[1]
    number(version)
    entries = []
    for wheel in wheels:
        if wheel.resolve().parent != directory.resolve():
            shutil.copy(wheel, directory / wheel.name)
        content = wheel.read_bytes()
        entries.append({"file": wheel.name, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)})
    return [*(release for release in releases if release["version"] != version),
            {"version": version, "wheels": entries}]


def sign(index: pathlib.Path, key: pathlib.Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(key.read_bytes(), None)
    if not isinstance(private, Ed25519PrivateKey):
        raise SystemExit(f"{key} is not an Ed25519 key")
    index.with_name(f"{index.name}.sig").write_bytes(base64.b64encode(private.sign(index.read_bytes())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("wheels", type=pathlib.Path, nargs="*")
    parser.add_argument("--key", type=pathlib.Path, required=True)
    parser.add_argument("--days", type=float, default=DAYS, help=f"validity of the list in days (default: {DAYS})")
    given = parser.parse_args()
    add(given.directory, given.wheels, given.key, given.days)
