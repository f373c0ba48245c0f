"""The disks of virtual guests: a record of the owner and the size of each disk.

Each virtual host has its own disks, or all hosts share their disks ([fake] shared_storage). The records are stored in
files or, if [fake] directory is unset, in memory."""

import contextlib
import json
import os
import threading
import uuid as uuidlib
from typing import NamedTuple

from nova.common import files
from nova.conf import CONF
from nova.virt.fake.log import AppendOnlyFile

ASIDE = "_resize"


class Disk(NamedTuple):
    """The root disk of a guest. ``token``: unique id; ``host``: the host that uses the disk."""

    host: str
    gb: int
    token: str


def made(host: str, gb: int) -> Disk:
    return Disk(host, gb, uuidlib.uuid4().hex)


class OwnDisks:
    """The disks of one host by uuid of the guest; renamed disks: uuid and ``ASIDE``. ``path``: file (None: memory)."""

    def __init__(self, path: str | None = None) -> None:
        self._disks: dict[str, Disk] = {}
        self._lock = threading.Lock()
        self._file = AppendOnlyFile(path, Disk)

    def open(self) -> None:
        with self._lock:
            self._file.load_into(self._disks)

    def get(self, name: str) -> Disk | None:
        return self._disks.get(name)

    def put(self, name: str, disk: Disk) -> None:
        with self._lock:
            self._disks[name] = disk
            self._file.note(name, disk, self._disks)

    def remove(self, name: str) -> None:
        with self._lock:
            if self._disks.pop(name, None) is not None:
                self._file.note(name, None, self._disks)

    def rename(self, name: str, other: str) -> None:
        """Rename a disk, if it exists."""
        with self._lock:
            disk = self._disks.pop(name, None)
            if disk is not None:
                self._disks[other] = disk
                self._file.note(other, disk, self._disks)
                self._file.note(name, None, self._disks)

    def names(self) -> list[str]:
        with self._lock:
            return list(self._disks)


class SharedFiles:
    """The disks of all hosts, shared by several processes: one file per disk."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self) -> None:
        os.makedirs(self._directory, exist_ok=True)

    def get(self, name: str) -> Disk | None:
        values = files.text_of(os.path.join(self._directory, name))
        return Disk(*json.loads(values)) if values is not None else None

    def put(self, name: str, disk: Disk) -> None:
        files.replace(os.path.join(self._directory, name), json.dumps(disk))

    def remove(self, name: str) -> None:
        files.remove(os.path.join(self._directory, name))

    def rename(self, name: str, other: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(self._directory, name), os.path.join(self._directory, other))

    def names(self) -> list[str]:
        return [name for name in os.listdir(self._directory) if not name.startswith(".")]


DiskStore = OwnDisks | SharedFiles

_ALL_HOSTS = OwnDisks()


def of_host(host: str, directory: str | None, shared: bool) -> DiskStore:
    """Return the disks of a host. ``directory``: [fake] directory."""
    if shared:
        return SharedFiles(os.path.join(directory, "disks")) if directory else _ALL_HOSTS
    return OwnDisks(os.path.join(directory, f"{host}.disks") if directory else None)


# --- as files ------------------------------------------------------------------------------------------
def copy_to_file(host: str, uuid: str, disk: Disk | None) -> str:
    """Write the record of the disk to a file; return the path of the file."""
    path = file_of(host, uuid)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    files.replace(path, json.dumps(disk))
    return path


def file_of(host: str, uuid: str) -> str:
    """Return the path of the file that copy_to_file() writes."""
    return os.path.join(CONF.state_path, "fake-snapshots", f"{uuid}.{host}")
