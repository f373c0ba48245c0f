"""Disk space of a host that tenants can use in addition to their claims."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.files import disk_making
from nova.virt.libvirt.snapshots import CopyRoom
from tests.unit.virt.guests import server

VOLUME = BlockDevice(source="volume", destination="volume", boot_index=0, volume_id="v")


@pytest.fixture(autouse=True)
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    register(CONF)
    CONF.set_override("instances_path", str(tmp_path))
    yield tmp_path
    for name in ("instances_path", "reserved_host_disk_mb"):
        CONF.clear_override(name)
    CONF.clear_override("rescue_disk_limit_gb", group="compute")


@pytest.mark.parametrize(("flavor", "devices"), [
    ({"root_gb": 1}, []), ({"root_gb": 0}, [VOLUME]), ({"root_gb": 500}, [VOLUME])],
    ids=["local", "volume", "volume-and-a-large-flavor"])
def test_rescue_disk_larger_than_the_limit_is_refused(
        place: pathlib.Path, flavor: dict[str, int], devices: list[BlockDevice]) -> None:
    CONF.set_override("rescue_disk_limit_gb", 1, group="compute")
    image = place / "huge.raw"
    with open(image, "wb") as file:
        file.truncate((1 << 30) + 512)
    instance = server(flavor=flavor, block_devices=devices)
    with pytest.raises(exception.InstanceNotRescuable, match="larger than the rescue disk, which may have 1 GiB"):
        disk_making.make_rescue(instance, Image(id="huge", disk_format="raw"), BootFiles(root=str(image)), "", "host")
    assert not (place / instance.uuid).exists()


def test_copies_leave_the_reserved_disk_space(place: pathlib.Path) -> None:
    room = CopyRoom()
    room.check(str(place))
    CONF.set_override("reserved_host_disk_mb", (shutil.disk_usage(place).free >> 20) + 1024)
    with pytest.raises(exception.DiskFull):
        room.check(str(place))
    with pytest.raises(exception.DiskFull), room.take(str(place / "copy"), 1):
        pass


def test_concurrent_copies_reserve_their_disk_space(place: pathlib.Path) -> None:
    room, free = CopyRoom(), shutil.disk_usage(place).free
    with room.take(str(place / "one"), free // 2):
        with pytest.raises(exception.DiskFull), room.take(str(place / "two"), free // 2):
            pass
    with room.take(str(place / "two"), free // 2):
        pass
