"""Sizes of 0 GiB of a flavor on libvirt hosts: the root disk is as large as its image; other disks do not exist."""

from __future__ import annotations

import contextlib
import os
import pathlib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nova import exception
from nova.conf import CONF, register
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import DiskSource
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories
from nova.virt.images.imagecache import ImageCache
from nova.virt.libvirt.cold_migration import ColdMigration
from nova.virt.libvirt.files import copies, disk_making, disks
from tests.unit.virt.guests import server
from tests.unit.virt.test_libvirt_domain_xml import HOST, domain_xml

GIB, MIB = 1 << 30, 1 << 20
IMAGE = 8 * MIB
VOLUME = BlockDevice(source="volume", destination="volume", boot_index=0, volume_id="v", delete_on_termination=False)
# Sizes of (root disk, ephemeral disk, swap) before and after a resize that libvirt hosts accept.
CHANGES = [((0, 0, 0), (0, 1, 16)), ((0, 0, 16), (0, 0, 0)), ((0, 1, 16), (0, 1, 0)), ((0, 0, 0), (1, 0, 0)),
           ((1, 0, 16), (1, 1, 0)), ((0, 0, 0), (0, 0, 16)), ((1, 0, 0), (1, 0, 0))]


class Host:
    """A libvirt host without libvirt: its guests are the definitions that its driver writes."""

    name = "here"

    def __init__(self) -> None:
        self.locks = SimpleNamespace(hold=lambda uuid, timeout=0: contextlib.nullcontext())
        self.disks: list[str] = []

    def exists(self, uuid: str) -> bool:
        return False

    is_active = exists

    def redefine(self, instance: Instance) -> None:
        connected = msgspec.structs.replace(instance, block_devices=[])
        definition = ET.fromstring(domain_xml(connected, disks.inspect_disks(instance), HOST))
        self.disks = [os.path.basename(source.get("file", "")) for source in definition.findall("devices/disk/source")]


@pytest.fixture(autouse=True)
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    register(CONF)
    CONF.set_override("state_path", str(tmp_path))
    yield tmp_path
    CONF.clear_override("state_path")


def flavor(sizes: tuple[int, int, int]) -> Flavor:
    root, ephemeral, swap = sizes
    return Flavor(flavorid=str(sizes), name="m1", memory_mb=128, vcpus=1, root_gb=root, ephemeral_gb=ephemeral,
                  swap=swap)


def made(sizes: tuple[int, int, int], volume_backed: bool = False) -> Instance:
    """Return a server with its files."""
    instance = server(flavor={"root_gb": sizes[0], "ephemeral_gb": sizes[1], "swap": sizes[2]},
                      block_devices=[VOLUME] if volume_backed else [])
    base = os.path.join(ImageCache().directory, f"{instance.image_ref}.raw")
    os.makedirs(os.path.dirname(base), exist_ok=True)
    with open(base, "wb") as file:
        file.truncate(IMAGE)
    disk_making.make(instance, BootFiles() if volume_backed else BootFiles(root=base), "here")
    return instance


def sizes_of(uuid: str) -> dict[str, int]:
    """Return {name: bytes} of the disks of a server."""
    folder = directories.directory(uuid)
    return {name: disks.virtual_size(os.path.join(folder, name), "qcow2")
            for name in sorted(os.listdir(folder)) if name.startswith("disk")}


def expected(sizes: tuple[int, int, int], volume_backed: bool = False, grown: int = 0) -> dict[str, int]:
    root, ephemeral, swap = sizes
    bytes_of = {"disk": 0 if volume_backed else max(root * GIB or IMAGE, grown), "disk.eph0": ephemeral * GIB,
                "disk.swap": swap * MIB}
    return {name: size for name, size in bytes_of.items() if size}


@pytest.mark.parametrize("volume_backed", [False, True], ids=["local root disk", "boot volume"])
@pytest.mark.parametrize("sizes", [(0, 0, 0), (0, 0, 16), (0, 1, 0), (1, 0, 0)])
def test_guest_has_no_disk_of_size_zero(sizes: tuple[int, int, int], volume_backed: bool) -> None:
    instance, host = made(sizes, volume_backed), Host()
    wanted = expected(sizes, volume_backed)
    assert sizes_of(instance.uuid) == wanted
    host.redefine(instance)
    assert host.disks == list(wanted)


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("volume_backed", [False, True], ids=["local root disk", "boot volume"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_resize_from_and_to_zero_changes_the_disks_of_a_guest(
        before: tuple[int, int, int], after: tuple[int, int, int], volume_backed: bool, end: str) -> None:
    instance, host = made(before, volume_backed), Host()
    migration, uuid = ColdMigration(host), instance.uuid  # type: ignore[arg-type]
    migration.check_resize(instance, flavor(after))
    directories.set_aside(uuid)
    moved, bases = copies.describe(directories.aside(uuid))
    source = DiskSource(host="here", token=directories.token(directories.aside(uuid), "here"), files=moved,
                        bases=list(bases.values()))
    resized = msgspec.structs.replace(instance, flavor=flavor(after))
    for _ in range(2):
        migration.receive_disks(resized, source)
        migration.finish(resized)
    wanted = expected(after, volume_backed)
    assert sizes_of(uuid) == wanted
    assert host.disks == list(wanted)
    if end == "confirm":
        migration.confirm(resized)
        assert not directories.is_aside(uuid)
        assert sizes_of(uuid) == wanted
    else:
        migration.revert(instance)
        assert sizes_of(uuid) == expected(before, volume_backed)
        assert host.disks == list(expected(before, volume_backed))


@pytest.mark.parametrize(("before", "after"), [((0, 1, 0), (0, 0, 0)), ((1, 1, 16), (1, 0, 0))])
def test_resize_that_would_remove_an_ephemeral_disk_is_refused_and_keeps_the_disks(
        before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    instance, kept = made(before), expected(before)
    with pytest.raises(exception.ResizeError, match="fewer ephemeral disks than the server"):
        ColdMigration(Host()).check_resize(instance, flavor(after))  # type: ignore[arg-type]
    assert sizes_of(instance.uuid) == kept


def test_resize_to_a_zero_root_disk_keeps_the_grown_disk() -> None:
    """The flavor has no size of its own, so the disk stays as large as it is."""
    instance = made((1, 0, 0))
    local = disks.inspect_disks(instance)
    smaller: Any = msgspec.structs.replace(instance, flavor=flavor((0, 0, 0)))
    disk_making.check_growth(local, smaller, smaller.flavor)
    disk_making.grow(local, smaller)
    assert sizes_of(instance.uuid) == expected((0, 0, 0), grown=GIB)
