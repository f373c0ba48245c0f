"""What another host hands over of a guest leads to no file of this one."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.moves import DiskFile, DiskSource
from nova.virt.imagecache import ImageCache
from nova.virt.libvirt import copies, directories
from tests.unit.virt.test_image_formats import qcow2

SOURCE = DiskSource(host="other")


@pytest.fixture(autouse=True)
def state(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    (tmp_path / "seen").mkdir()
    yield tmp_path
    CONF.clear_override("state_path")


def receive(state: pathlib.Path, content: bytes, **file: str) -> pathlib.Path:
    described = DiskFile(**{"name": "disk", "length": len(content), **file})  # type: ignore[arg-type]
    (state / "seen" / "disk").write_bytes(content)
    uuid = new_uuid()
    place = directories.make(uuid, "here")
    copies.receive(uuid, place, described, SOURCE, str(state / "seen"))
    return pathlib.Path(place, described.name)


def test_a_disk_that_stands_on_nothing_is_received(state: pathlib.Path) -> None:
    assert receive(state, qcow2()).read_bytes() == qcow2()


@pytest.mark.parametrize("content", [qcow2(backing=b"/etc/shadow"), qcow2(features=4), b"no disk", b""])
def test_a_disk_that_refers_to_a_file_that_nobody_told_of_is_refused(state: pathlib.Path, content: bytes) -> None:
    with pytest.raises(exception.MigrationError):
        receive(state, content)
    assert list((state / "instances").glob("*/disk*")) == []


@pytest.mark.parametrize("name", ["../disk", "/etc/cron.d/evil", "disk.part", "owner", "", "disk.eph", "nova.conf"])
def test_what_is_no_file_of_a_guest_is_not_received(state: pathlib.Path, name: str) -> None:
    with pytest.raises(exception.MigrationError, match="is no file of a server"):
        receive(state, qcow2(), name=name)
    with pytest.raises(exception.MigrationError, match="is no file of a server"):
        receive(state, qcow2(), format="raw")


def test_an_image_of_another_host_that_refers_to_a_file_is_not_taken_into_the_cache(state: pathlib.Path) -> None:
    def copy(path: str) -> None:
        pathlib.Path(path).write_bytes(qcow2(backing=b"/etc/shadow"))

    with pytest.raises(exception.ImageUnacceptable, match="it refers to another file"):
        ImageCache().adopt("one.qcow2", copy, 1 << 20)
    assert [path.name for path in (state / "instances" / "_base").iterdir()] == ["locks"]
