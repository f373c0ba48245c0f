"""Detection of vhost-user back ends from the interop files on this host."""

from __future__ import annotations

import glob
import json
import os

# Directories in ascending order of precedence; one file in any of them is enough.
_PLACES = ("/usr/share/qemu/vhost-user", "/etc/qemu/vhost-user")


def serves_file_systems() -> bool:
    """Return True if a back end for file systems (virtiofsd) is installed."""
    return any(_serves(path) for place in _PLACES for path in glob.glob(os.path.join(place, "*.json")))


def _serves(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            description = json.load(file)
        return description.get("type") == "fs" and os.access(str(description.get("binary", "")), os.X_OK)
    except (OSError, ValueError, AttributeError):
        return False
