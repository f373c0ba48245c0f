"""Files received from another host must not refer to files of this host."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.servers.moves import DiskFile, DiskSource
from nova.virt.guest_files import directories, disk_server
from nova.virt.images.imagecache import ImageCache
from nova.virt.libvirt.files import copies
from tests.unit.virt.guests import server
from tests.unit.virt.test_image_formats import MIB, qcow2

SOURCE = DiskSource(host="other")


@pytest.fixture(autouse=True)
def state(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    (tmp_path / "seen").mkdir()
    yield tmp_path
    CONF.clear_override("state_path")


def receive(state: pathlib.Path, content: bytes, **file: Any) -> pathlib.Path:
    described = DiskFile(**{"name": "disk", "size": 8 * MIB, "length": len(content), **file})
    if not (state / "seen" / "disk").exists():
        (state / "seen" / "disk").write_bytes(content)
    instance = server(uuid=new_uuid())
    place = directories.make(instance.uuid, "here")
    copies.receive(instance, place, described, SOURCE, str(state / "seen"))
    return pathlib.Path(place, described.name)


def test_disk_without_backing_file_is_received(state: pathlib.Path) -> None:
    assert receive(state, qcow2()).read_bytes() == qcow2()


@pytest.mark.parametrize("content", [qcow2(backing=b"/etc/shadow"), qcow2(features=4), b"no disk", b""])
def test_disk_with_an_undeclared_backing_file_is_refused(state: pathlib.Path, content: bytes) -> None:
    with pytest.raises(exception.MigrationError):
        receive(state, content)
    assert list((state / "instances").glob("*/disk*")) == []


def test_file_longer_than_its_description_is_refused(state: pathlib.Path) -> None:
    with pytest.raises(exception.MigrationError, match="does not match the description of the other host"):
        receive(state, qcow2(), length=MIB - 1)
    with pytest.raises(exception.MigrationError, match="does not match the description of the other host"):
        receive(state, qcow2(), size=4 * MIB)
    assert list((state / "instances").glob("*/disk*")) == []


def test_symbolic_link_on_shared_storage_is_refused(state: pathlib.Path) -> None:
    (state / "secret").write_bytes(qcow2())
    (state / "seen" / "disk").symlink_to(state / "secret")
    with pytest.raises(exception.MigrationError, match="does not match the description of the other host"):
        receive(state, qcow2())
    assert list((state / "instances").glob("*/disk*")) == []


@pytest.mark.parametrize("name", ["../disk", "/etc/cron.d/evil", "disk.part", "owner", "", "disk.eph", "nova.conf"])
def test_file_name_that_is_no_guest_file_is_refused(state: pathlib.Path, name: str) -> None:
    with pytest.raises(exception.MigrationError, match="is not a file of a server"):
        receive(state, qcow2(), name=name)
    with pytest.raises(exception.MigrationError, match="is not a file of a server"):
        receive(state, qcow2(), format="raw")


def test_received_image_with_a_backing_file_is_not_cached(state: pathlib.Path) -> None:
    def copy(path: str) -> None:
        pathlib.Path(path).write_bytes(qcow2(backing=b"/etc/shadow"))

    with pytest.raises(exception.ImageUnacceptable, match="the image refers to another file"):
        ImageCache().adopt("one.qcow2", copy, 1 << 20)
    assert [path.name for path in (state / "instances" / "_base").iterdir()] == ["locks"]


def on(base: str = "image.raw", base_format: str = "raw") -> DiskFile:
    return DiskFile(name="disk", base=base, base_format=base_format)


def serving(host: str, *names: str) -> DiskSource:
    """Return a file list as reported by a host."""
    return DiskSource(host=host, bases=[DiskFile(name=name, size=1024, length=1024) for name in names])


def test_received_base_image_is_not_used_for_other_servers(
        state: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a compromised host could replace the images of all tenants on the destination."""
    monkeypatch.setattr(disk_server, "fetch", lambda _uuid, _served, name, length, path: pathlib.Path(path).write_bytes(
        name.encode().ljust(length)))
    received = pathlib.Path(copies.base_of(server(), on(), serving("hostile", "image.raw")))
    assert received.read_bytes().startswith(b"base/image.raw")
    fetched = ImageCache().fetch("image", lambda path, _admit: pathlib.Path(path).write_bytes(b"the image") and None,
                                 "raw")
    assert pathlib.Path(fetched).read_bytes() == b"the image"
    once_more = copies.base_of(server(), on(received.name), serving("other", received.name))
    assert once_more == str(received), "the image received earlier is not reused"


def test_base_images_are_stored_per_source_host(state: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_server, "fetch", lambda *told: pathlib.Path(told[-1]).write_bytes(bytes(1024)))
    source = serving("one", "image.raw")
    assert copies.base_of(server(), on(), source) == copies.base_of(server(uuid=new_uuid()), on(), source)
    assert copies.base_of(server(), on(), source) != copies.base_of(server(), on(), serving("two", "image.raw"))


@pytest.mark.parametrize("disk", [
    on("secret.raw"), on("image-secret.raw"), on("image.part", "part"), on("image.raw", "qcow2"), on("image"),
    on("../image.raw"), on("gone.raw")])
def test_base_that_is_not_the_image_of_the_server_is_refused(state: pathlib.Path, disk: DiskFile) -> None:
    """Another base image may contain a tenant's secret, and a qcow2 file names its backing file."""
    cache = state / "instances" / "_base"
    cache.mkdir(parents=True)
    for name in ("secret.raw", "image.raw", "image-secret.raw", "image.part", "image"):
        (cache / name).write_bytes(bytes(1024))
    source = serving("hostile", *(name for name in (disk.base,) if name != "gone.raw"))
    with pytest.raises(exception.MigrationError, match="has a backing file other than the server's image"):
        copies.base_of(server(), disk, source)
