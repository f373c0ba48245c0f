"""Disk files served to another host: exactly the announced number of bytes is accepted."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.servers.moves import DiskSource
from nova.virt.guest_files import disk_server

pytestmark = pytest.mark.skipif(shutil.which("qemu-storage-daemon") is None, reason="needs qemu-storage-daemon")
MIB = 1 << 20
CONTENT = b"beginning".ljust(MIB, b"\0") + b"end".ljust(MIB, b"\0") + b"tail"


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[tuple[str, DiskSource]]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    CONF.set_override("migration_inbound_addr", "127.0.0.1", group="libvirt")
    (tmp_path / "disk").write_bytes(CONTENT)
    uuid = new_uuid()
    try:
        yield uuid, disk_server.serve(uuid, [("disk", str(tmp_path / "disk"))], "h1")
    finally:
        disk_server.stop(uuid)
        CONF.clear_override("migration_inbound_addr", group="libvirt")
        CONF.clear_override("state_path")


def test_served_file_is_copied_sparsely(served: tuple[str, DiskSource], tmp_path: pathlib.Path) -> None:
    disk_server.fetch(*served, "disk", len(CONTENT), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert (tmp_path / "copy").stat().st_blocks * 512 < MIB, "the copy is not sparse"


@pytest.mark.parametrize("told", [512, MIB, 2 * MIB])
def test_file_larger_than_announced_is_not_copied(served: tuple[str, DiskSource], tmp_path: pathlib.Path,
                                                  told: int) -> None:
    with pytest.raises(exception.MigrationError, match="could not be copied"):
        disk_server.fetch(*served, "disk", told, str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_blocks * 512 <= told
