"""The subtree of a host in every cgroup hierarchy.

Two libvirtds use the same names for groups of guests, so each needs its own subtree. All processes of a host are in the
leaf ``system`` of its subtree: cgroup v2 groups that delegate controllers to children cannot contain processes.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time

LEAF = "system"


def hierarchies() -> list[pathlib.Path]:
    """Return the mount points of the cgroup hierarchies of the machine."""
    mounted = []
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _device, place, kind, *_rest = line.split()
            if kind in ("cgroup", "cgroup2") and os.access(place, os.W_OK):
                mounted.append(pathlib.Path(place))
    return mounted


def make(name: str) -> None:
    """Create the groups of a host; existing groups are kept."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        for path in (group, group / LEAF):
            path.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup v1 group
                with contextlib.suppress(OSError):
                    (path / setting).write_text((hierarchy / setting).read_text())


def join(name: str) -> None:
    """Move this process into the group ``name`` of every hierarchy."""
    for hierarchy in hierarchies():
        (hierarchy / name / "cgroup.procs").write_text("0")


def remove(name: str, seconds: float = 10.0) -> None:
    """Remove the groups of a host with all groups of libvirt; wait up to ``seconds`` for exiting processes."""
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
