"""Embedded volumes as files of a pool: creation, reuse, protection against links, and removal."""

import os
import stat
import subprocess
import threading
import time

import msgspec
import pytest

from nova import conf, exception
from nova.compute.disk_tools import QemuTools
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from nova.objects.volumes.volume import LocalConnection, VolumeRemoval
from nova.virt.images import qemuimg
from nova.volume.local import LocalVolumes
from tests.unit.virt.test_image_formats import qcow2

GIB = 1 << 30


@pytest.fixture
def pool(tmp_path):
    conf.register()
    volumes = LocalVolumes(QemuTools(), str(tmp_path / "pool"))
    volumes.start()
    return volumes


def info(**changes):
    return msgspec.to_builtins(LocalConnection(**{
        "volume_id": new_uuid(), "generation": 1, "size_gb": 1, "fresh": True, **changes}))


def removal_of(requested):
    return VolumeRemoval(volume_uuid=requested["volume_id"], generation=requested["generation"], host="h1")


def test_new_volume_is_a_sparse_private_file_of_exact_size(pool):
    requested = info(size_gb=3)
    connection = pool.connect(requested)
    assert connection.path == os.path.join(pool.directory, f"{requested['volume_id']}.1")
    assert (connection.protocol, connection.format, connection.serial) == ("file", "raw", requested["volume_id"])
    status = os.lstat(connection.path)
    assert (status.st_size, status.st_blocks, stat.S_IMODE(status.st_mode)) == (3 * GIB, 0, 0o600)
    assert stat.S_IMODE(os.stat(pool.directory).st_mode) == 0o711


def test_qcow2_volume_has_the_requested_virtual_size(pool):
    connection = pool.connect(info(format="qcow2", size_gb=2))
    assert connection.format == "qcow2"
    assert qemuimg.Qcow2Header(connection.path).virtual_size == 2 * GIB
    assert os.stat(connection.path).st_size < 1 << 20


def test_existing_volume_file_is_reused_unchanged(pool):
    requested = info()
    path = pool.connect(requested).path
    with open(path, "r+b") as file:
        file.write(b"precious")
    for again in (requested, {**requested, "fresh": False}):
        assert pool.connect(again).path == path
    with open(path, "rb") as file:
        assert file.read(8) == b"precious"


def test_missing_data_of_a_written_volume_are_not_recreated(pool):
    requested = info(fresh=False)
    with pytest.raises(exception.VolumeUnusable, match="missing"):
        pool.connect(requested)
    assert os.listdir(pool.directory) == []


def convert(source, source_format, target, target_format):
    subprocess.run(["qemu-img", "convert", "-f", source_format, "-O", target_format, source, target], check=True)


@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_volume_from_an_image_has_the_image_content_and_requested_size(pool, tmp_path, disk_format, image_format):
    content = os.urandom(1 << 20)
    (tmp_path / "raw").write_bytes(content)
    if image_format != "raw":
        convert(tmp_path / "raw", "raw", tmp_path / image_format, image_format)
    fetched = []

    def fetch(image, most):
        assert most == GIB
        fetched.append(image.id)
        return str(tmp_path / image_format), image_format

    requested = info(size_gb=1, format=disk_format, image=Image(id="i1"))
    path = pool.connect(requested, fetch).path
    pool.connect(requested, fetch)
    assert fetched == ["i1"]
    assert pool.tools.size(path, disk_format) == GIB
    convert(path, disk_format, tmp_path / "back", "raw")
    assert (tmp_path / "back").read_bytes()[:1 << 20] == content
    assert os.listdir(pool.directory) == [os.path.basename(path)]


def test_volume_from_a_larger_image_is_refused_without_leftovers(pool, tmp_path):
    pool.tools.create(str(tmp_path / "big"), "raw", 2 * GIB)
    with pytest.raises(exception.VolumeUnusable, match="larger"):
        pool.connect(info(image=Image(id="i1")), lambda _image, _most: (str(tmp_path / "big"), "raw"))
    assert os.listdir(pool.directory) == []


def test_volume_without_image_fetcher_is_empty(pool):
    assert os.stat(pool.connect(info(image=Image(id="i1"))).path).st_blocks == 0


@pytest.mark.parametrize("uuid", ["../../etc/passwd", "x", "", "A" * 36, f"{'a' * 8}-1111-4111-8111-{'b' * 12}\n"])
def test_volume_id_that_is_no_uuid_is_refused(pool, uuid):
    for refused in (lambda: pool.connect(info(volume_id=uuid)),
                    lambda: pool.remove(VolumeRemoval(volume_uuid=uuid, generation=1, host="h1"))):
        with pytest.raises(exception.VolumeUnusable, match="not a UUID"):
            refused()


def test_volume_symlinks_are_not_followed(pool, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"secret")
    requested = info()
    os.symlink(victim, os.path.join(pool.directory, f"{requested['volume_id']}.1"))
    with pytest.raises(exception.VolumeUnusable, match="not a regular file"):
        pool.connect(requested)
    pool.remove(removal_of(requested))
    assert victim.read_bytes() == b"secret"
    assert os.listdir(pool.directory) == []


def test_volume_file_of_another_size_is_refused(pool):
    requested = info()
    os.truncate(pool.connect(requested).path, GIB - 512)
    with pytest.raises(exception.VolumeUnusable, match="instead of 1 GiB"):
        pool.connect(requested)


@pytest.mark.parametrize("refers", [{"backing": b"/etc/shadow"}, {"features": 4}])
def test_qcow2_volume_that_refers_to_another_file_is_refused(pool, refers):
    """Otherwise a compromised host of the shared pool could read files of the next host of the volume."""
    requested = info(format="qcow2", fresh=False)
    with open(os.path.join(pool.directory, f"{requested['volume_id']}.1"), "wb") as file:
        file.write(qcow2(size=GIB, **refers))
    with pytest.raises(exception.InvalidDiskInfo, match="the file refers to another file"):
        pool.connect(requested)


def test_connection_info_of_another_backend_is_refused(pool):
    with pytest.raises(exception.VolumeUnusable, match="v1"):
        pool.connect({"driver_volume_type": "rbd", "volume_id": "v1"})


def test_volume_removal_affects_only_its_generation_and_is_idempotent(pool):
    requested = info()
    paths = [pool.connect({**requested, "generation": generation}).path for generation in (1, 2)]
    for _again in range(2):
        pool.remove(removal_of(requested))
    assert [os.path.exists(path) for path in paths] == [False, True]


def test_late_connect_does_not_recreate_removed_volume_data(pool):
    requested = info()
    pool.remove(removal_of(requested))
    with pytest.raises(exception.VolumeUnusable, match="its data were removed"):
        pool.connect(requested)
    assert os.listdir(pool.directory) == []


def test_volume_removal_during_creation_leaves_no_file(pool, tmp_path):
    source = tmp_path / "image"
    source.write_bytes(b"data")
    requested = info(image=Image(id="i1"))

    def fetch(_image, _size):
        pool.remove(removal_of(requested))
        return str(source), "raw"

    with pytest.raises(exception.VolumeUnusable, match="its data were removed"):
        pool.connect(requested, fetch)
    assert os.listdir(pool.directory) == []


def test_concurrent_creations_of_a_volume_create_a_single_file(pool):
    requested, paths = info(), []
    threads = [threading.Thread(target=lambda: paths.append(pool.connect(requested).path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert os.listdir(pool.directory) == [os.path.basename(paths[0])]


def test_old_incomplete_volume_files_are_deleted_at_start(pool):
    old, new = (os.path.join(pool.directory, f"{new_uuid()}.1.{name}.part") for name in "ab")
    for path in (old, new):
        open(path, "wb").close()
    os.utime(old, (time.time() - 100_000,) * 2)
    pool.start()
    assert os.listdir(pool.directory) == [os.path.basename(new)]
