"""A host's own part of every cgroup hierarchy.

Two libvirtds name their guests' groups alike, so neither may see the other's. All processes of a host are in the leaf
``system`` of its part: groups of the second version with controllers for their children hold no processes themselves.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time

LEAF = "system"


def hierarchies() -> list[pathlib.Path]:
    """Where the machine's cgroup hierarchies are mounted."""
    found = []
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _device, place, kind, *_rest = line.split()
            if kind in ("cgroup", "cgroup2") and os.access(place, os.W_OK):
                found.append(pathlib.Path(place))
    return found


def make(name: str) -> None:
    """The groups of a host; those that are there stay."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        for path in (group, group / LEAF):
            path.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # a new group of the first version has none and takes nobody
                with contextlib.suppress(OSError):
                    (path / setting).write_text((hierarchy / setting).read_text())


def join(name: str) -> None:
    """Move this process into the group ``name`` of every hierarchy."""
    for hierarchy in hierarchies():
        (hierarchy / name / "cgroup.procs").write_text("0")


def remove(name: str, seconds: float = 10.0) -> None:
    """Remove a host's groups with all that libvirt made in them; processes that still end are waited for."""
    deadline = time.monotonic() + seconds
    for hierarchy in hierarchies():
        for path, _folders, _files in os.walk(hierarchy / name, topdown=False):
            while os.path.exists(path):
                try:
                    os.rmdir(path)
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
