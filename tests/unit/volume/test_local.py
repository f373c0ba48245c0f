"""Volumes as files of a pool: made once and exactly, never through links, kept until a row says otherwise."""

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


def test_a_fresh_volume_is_a_sparse_file_of_its_exact_size_for_its_user_alone(pool):
    requested = info(size_gb=3)
    connection = pool.connect(requested)
    assert connection.path == os.path.join(pool.directory, f"{requested['volume_id']}.1")
    assert (connection.protocol, connection.format, connection.serial) == ("file", "raw", requested["volume_id"])
    status = os.lstat(connection.path)
    assert (status.st_size, status.st_blocks, stat.S_IMODE(status.st_mode)) == (3 * GIB, 0, 0o600)
    assert stat.S_IMODE(os.stat(pool.directory).st_mode) == 0o711


def test_a_qcow2_volume_says_its_size(pool):
    connection = pool.connect(info(format="qcow2", size_gb=2))
    assert connection.format == "qcow2"
    assert qemuimg.Qcow2Header(connection.path).virtual_size == 2 * GIB
    assert os.stat(connection.path).st_size < 1 << 20


def test_a_volume_that_is_there_is_used_as_it_is(pool):
    requested = info()
    path = pool.connect(requested).path
    with open(path, "r+b") as file:
        file.write(b"precious")
    for again in (requested, {**requested, "fresh": False}):
        assert pool.connect(again).path == path
    with open(path, "rb") as file:
        assert file.read(8) == b"precious"


def test_data_that_a_guest_had_are_never_made_anew(pool):
    requested = info(fresh=False)
    with pytest.raises(exception.VolumeUnusable, match="missing"):
        pool.connect(requested)
    assert os.listdir(pool.directory) == []


def convert(source, source_format, target, target_format):
    subprocess.run(["qemu-img", "convert", "-f", source_format, "-O", target_format, source, target], check=True)


@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_a_volume_from_an_image_has_its_content_and_the_requested_size(pool, tmp_path, disk_format,
                                                                               image_format):
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


def test_an_image_that_is_larger_than_the_volume_is_refused_and_leaves_nothing(pool, tmp_path):
    pool.tools.create(str(tmp_path / "big"), "raw", 2 * GIB)
    with pytest.raises(exception.VolumeUnusable, match="larger"):
        pool.connect(info(image=Image(id="i1")), lambda _image, _most: (str(tmp_path / "big"), "raw"))
    assert os.listdir(pool.directory) == []


def test_a_virtual_host_has_no_images_and_its_volumes_are_empty(pool):
    assert os.stat(pool.connect(info(image=Image(id="i1"))).path).st_blocks == 0


@pytest.mark.parametrize("uuid", ["../../etc/passwd", "x", "", "A" * 36, f"{'a' * 8}-1111-4111-8111-{'b' * 12}\n"])
def test_a_name_is_never_made_of_what_is_no_uuid(pool, uuid):
    for refused in (lambda: pool.connect(info(volume_id=uuid)),
                    lambda: pool.remove(VolumeRemoval(volume_uuid=uuid, generation=1, host="h1"))):
        with pytest.raises(exception.VolumeUnusable, match="not a UUID"):
            refused()


def test_links_are_not_followed(pool, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"secret")
    requested = info()
    os.symlink(victim, os.path.join(pool.directory, f"{requested['volume_id']}.1"))
    with pytest.raises(exception.VolumeUnusable, match="not a regular file"):
        pool.connect(requested)
    pool.remove(removal_of(requested))
    assert victim.read_bytes() == b"secret"
    assert os.listdir(pool.directory) == []


def test_a_file_of_another_size_is_refused(pool):
    requested = info()
    os.truncate(pool.connect(requested).path, GIB - 512)
    with pytest.raises(exception.VolumeUnusable, match="instead of 1 GiB"):
        pool.connect(requested)


@pytest.mark.parametrize("refers", [{"backing": b"/etc/shadow"}, {"features": 4}])
def test_a_qcow2_volume_that_refers_to_another_file_is_rejected(pool, refers):
    """A host that was taken over, and shares the pool, would read the files of the next that has the volume."""
    requested = info(format="qcow2", fresh=False)
    with open(os.path.join(pool.directory, f"{requested['volume_id']}.1"), "wb") as file:
        file.write(qcow2(size=GIB, **refers))
    with pytest.raises(exception.InvalidDiskInfo, match="refers to another file"):
        pool.connect(requested)


def test_what_another_back_end_says_is_refused(pool):
    with pytest.raises(exception.VolumeUnusable, match="v1"):
        pool.connect({"driver_volume_type": "rbd", "volume_id": "v1"})


def test_removing_takes_this_generation_only_and_may_be_repeated(pool):
    requested = info()
    paths = [pool.connect({**requested, "generation": generation}).path for generation in (1, 2)]
    for _again in range(2):
        pool.remove(removal_of(requested))
    assert [os.path.exists(path) for path in paths] == [False, True]


def test_a_late_operation_does_not_create_removed_data(pool):
    requested = info()
    pool.remove(removal_of(requested))
    with pytest.raises(exception.VolumeUnusable, match="its data were removed"):
        pool.connect(requested)
    assert os.listdir(pool.directory) == []


def test_a_removal_during_the_creation_leaves_nothing(pool, tmp_path):
    source = tmp_path / "image"
    source.write_bytes(b"data")
    requested = info(image=Image(id="i1"))

    def fetch(_image, _size):
        pool.remove(removal_of(requested))
        return str(source), "raw"

    with pytest.raises(exception.VolumeUnusable, match="its data were removed"):
        pool.connect(requested, fetch)
    assert os.listdir(pool.directory) == []


def test_concurrent_creations_of_a_volume_make_a_single_file(pool):
    requested, paths = info(), []
    threads = [threading.Thread(target=lambda: paths.append(pool.connect(requested).path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert os.listdir(pool.directory) == [os.path.basename(paths[0])]


def test_old_incomplete_files_are_deleted_at_the_start(pool):
    old, new = (os.path.join(pool.directory, f"{new_uuid()}.1.{name}.part") for name in "ab")
    for path in (old, new):
        open(path, "wb").close()
    os.utime(old, (time.time() - 100_000,) * 2)
    pool.start()
    assert os.listdir(pool.directory) == [os.path.basename(new)]
