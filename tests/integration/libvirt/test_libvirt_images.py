"""The image cache and the disks of guests with real qemu-img: formats, crashes, full disks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import pwd
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories
from nova.virt.images import image_formats, qemuimg
from nova.virt.images.imagecache import Download, ImageCache, cached_format
from nova.virt.libvirt.files import disk_making, disks
from tests.integration.libvirt_fixtures import server

os.environ["PATH"] += ":/usr/sbin:/sbin"
_TOOLS = ("qemu-img", "mkfs.ext4", "mkswap", "prlimit")
pytestmark = pytest.mark.skipif(not all(map(shutil.which, _TOOLS)), reason=f"needs {', '.join(_TOOLS)}")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def state(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    register(CONF)
    CONF.set_override("state_path", str(tmp_path))
    yield tmp_path
    CONF.clear_override("state_path")
    CONF.clear_override("force_raw_images")
    for name in ("remove_unused_base_images", "remove_unused_original_minimum_age_seconds", "size_limit_mb"):
        CONF.clear_override(name, "image_cache")


def img(*command: str) -> str:
    return subprocess.run(["qemu-img", *command], check=True, capture_output=True, text=True, timeout=60).stdout


def facts(path: str | pathlib.Path) -> dict[str, Any]:
    return json.loads(img("info", "--output=json", str(path)))


def make(place: pathlib.Path, kind: str, size: int = 8 * MIB, *options: str) -> pathlib.Path:
    """Create an image of this qemu-img format with some data."""
    raw, path = place / "data.raw", place / f"data.{kind}"
    raw.write_bytes(b"nova" * 1024)
    os.truncate(raw, size)
    if kind != "raw":
        img("convert", "-f", "raw", "-O", kind, *options, str(raw), str(path))
    return path


def copier(source: pathlib.Path) -> Download:
    def copy(path: str, admit: Callable[[int], None]) -> None:
        admit(source.stat().st_size)
        shutil.copyfile(source, path)

    return copy


def entries(cache: ImageCache) -> list[str]:
    return sorted(name for name in os.listdir(cache.directory) if name != "locks")


@pytest.fixture
def impostor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], pathlib.Path]]:
    """Replace qemu-img by a script. Return a world-writable directory, which is $PLACE in the script."""
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        place.chmod(0o777)

        def put(script: str) -> pathlib.Path:
            (place / "qemu-img").write_text(f"#!/bin/sh\nPLACE={place}\n{script}\n")
            (place / "qemu-img").chmod(0o755)
            return place

        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        yield put


# --- the cache -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "disk_format", "kept"), [
    ("raw", "raw", "raw"), ("raw", "ami", "raw"), ("raw", "aki", "raw"), ("qcow2", "qcow2", "qcow2"),
    ("vmdk", "vmdk", "qcow2"), ("vdi", "vdi", "qcow2"), ("vpc", "vhd", "qcow2"), ("vhdx", "vhdx", "qcow2"),
])
def test_supported_image_formats_are_cached(state: pathlib.Path, kind: str, disk_format: str, kept: str) -> None:
    path = ImageCache().fetch("one", copier(make(state, kind)), disk_format)
    assert os.path.basename(path) == f"one.{kept}"
    assert cached_format(disk_format) == kept
    assert facts(path)["format"] == kept
    assert entries(ImageCache()) == [f"one.{kept}"]
    back = state / "back.raw"
    img("convert", "-f", kept, "-O", "raw", path, str(back))
    assert back.read_bytes()[:4096] == b"nova" * 1024


def test_stream_optimized_vmdk_is_cached(state: pathlib.Path) -> None:
    path = ImageCache().fetch("one", copier(make(state, "vmdk", 8 * MIB, "-o", "subformat=streamOptimized")), "vmdk")
    assert facts(path)["virtual-size"] == 8 * MIB


def test_fixed_vhd_is_cached(state: pathlib.Path) -> None:
    path = ImageCache().fetch("one", copier(make(state, "vpc", 8 * MIB, "-o", "subformat=fixed")), "vhd")
    assert facts(path)["format"] == "qcow2"


def test_images_are_cached_as_raw_when_configured(state: pathlib.Path) -> None:
    CONF.set_override("force_raw_images", True)
    path = ImageCache().fetch("one", copier(make(state, "qcow2")), "qcow2")
    assert path.endswith("one.raw")
    assert os.stat(path).st_size == 8 * MIB
    assert os.stat(path).st_blocks * 512 < MIB, "the file is not sparse"


def test_concurrent_builds_download_an_image_once(state: pathlib.Path) -> None:
    source, calls, paths = make(state, "qcow2"), [], []

    def slow(path: str, admit: Callable[[int], None]) -> None:
        calls.append(path)
        time.sleep(0.3)
        shutil.copyfile(source, path)

    threads = [threading.Thread(target=lambda: paths.append(ImageCache().fetch("one", slow, "qcow2")))
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(calls) == 1
    assert paths == [paths[0]] * 8


def test_failed_download_leaves_no_files_and_can_be_repeated(state: pathlib.Path) -> None:
    def broken(path: str, admit: Callable[[int], None]) -> None:
        pathlib.Path(path).write_bytes(b"half")
        raise exception.ImageBackendUnavailable(reason="gone")

    with pytest.raises(exception.ImageBackendUnavailable):
        ImageCache().fetch("one", broken, "qcow2")
    assert entries(ImageCache()) == []
    assert os.path.exists(ImageCache().fetch("one", copier(make(state, "qcow2")), "qcow2"))


def test_partial_files_of_a_crash_are_replaced_or_removed(state: pathlib.Path) -> None:
    cache = ImageCache()
    os.makedirs(cache.directory)
    pathlib.Path(cache.directory, "one.part").write_bytes(b"half")
    pathlib.Path(cache.directory, "two.part").write_bytes(b"half")
    assert facts(cache.fetch("one", copier(make(state, "qcow2")), "qcow2"))["format"] == "qcow2"
    cache.clean(set())
    assert entries(cache) == ["one.qcow2"]


@pytest.mark.parametrize(("kind", "disk_format"), [
    ("qcow2", "raw"), ("qcow2", "ami"), ("qcow2", "vmdk"), ("raw", "qcow2"), ("raw", "vmdk"), ("vmdk", "raw"),
    ("vhdx", "raw"), ("vdi", "raw"), ("raw", "iso"), ("raw", "vhd"), ("raw", "ploop"), ("raw", None),
])
def test_image_of_another_format_than_declared_is_refused(state: pathlib.Path, kind: str,
                                                          disk_format: str | None) -> None:
    with pytest.raises(exception.ImageUnacceptable, match="one"):
        ImageCache().fetch("one", copier(make(state, kind)), disk_format)
    assert not os.path.isdir(ImageCache().directory) or entries(ImageCache()) == []


def _backed(place: pathlib.Path) -> pathlib.Path:
    secret = place / "secret"
    secret.write_bytes(b"s" * MIB)
    path = place / "backed.qcow2"
    img("create", "-f", "qcow2", "-F", "raw", "-b", str(secret), str(path))
    return path


def _data_file(place: pathlib.Path) -> pathlib.Path:
    path = place / "external.qcow2"
    img("create", "-f", "qcow2", "-o", f"data_file={place / 'external.data'}", str(path), "1M")
    return path


def _flat_vmdk(place: pathlib.Path) -> pathlib.Path:
    return make(place, "vmdk", 8 * MIB, "-o", "subformat=monolithicFlat")


def _truncated(place: pathlib.Path) -> pathlib.Path:
    path = make(place, "qcow2")
    os.truncate(path, 60)
    return path


def _lying_header(place: pathlib.Path) -> pathlib.Path:
    """Create an image with a cluster table that would need more memory than any host has."""
    path = make(place, "qcow2")
    with open(path, "r+b") as file:
        file.seek(24)
        file.write((1 << 62).to_bytes(8, "big"))
        file.seek(36)
        file.write((0xffffffff).to_bytes(4, "big"))
    return path


def _encrypted(place: pathlib.Path) -> pathlib.Path:
    path = make(place, "qcow2")
    with open(path, "r+b") as file:
        file.seek(32)
        file.write((2).to_bytes(4, "big"))
    return path


@pytest.mark.parametrize(("build", "disk_format"), [
    (_backed, "qcow2"), (_data_file, "qcow2"), (_flat_vmdk, "vmdk"), (_truncated, "qcow2"),
    (_lying_header, "qcow2"), (_encrypted, "qcow2"),
])
def test_dangerous_images_are_refused(state: pathlib.Path, build: Callable[[pathlib.Path], pathlib.Path],
                                      disk_format: str) -> None:
    path = build(state)
    with pytest.raises(exception.ImageUnacceptable) as refusal:
        ImageCache().fetch("one", copier(path), disk_format)
    assert str(state) not in refusal.value.message, "the error contains a path of the host"
    assert entries(ImageCache()) == []


@pytest.mark.parametrize("image_id", ["../up", "a/b", "", ".hidden", "a\0b"])
def test_invalid_image_id_is_refused(image_id: str) -> None:
    with pytest.raises(exception.ImageUnacceptable):
        ImageCache().fetch(image_id, lambda path, admit: None, "raw")


def test_cleaning_removes_old_unused_images(state: pathlib.Path) -> None:
    cache = ImageCache()
    old, used, young = (cache.fetch(name, copier(make(state, "qcow2")), "qcow2") for name in ("old", "used", "young"))
    long_ago = time.time() - 90000
    for path in (old, used):
        os.utime(path, (long_ago, long_ago))
    assert (cache.clean({used}), os.path.exists(young)) == ([old], True)
    assert os.stat(used).st_mtime == long_ago, "copy-on-write disks of User Mode Linux record this time"
    assert cache.clean(set()) == [], "an image in use a moment ago was removed"


def test_cleaning_follows_the_configuration(state: pathlib.Path) -> None:
    cache = ImageCache()
    path = cache.fetch("one", copier(make(state, "qcow2")), "qcow2")
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    CONF.set_override("remove_unused_base_images", False, "image_cache")
    CONF.set_override("remove_unused_original_minimum_age_seconds", 0, "image_cache")
    assert cache.clean(set()) == []
    CONF.set_override("remove_unused_base_images", True, "image_cache")
    assert cache.clean(set()) == [path]
    fresh = cache.fetch("two", copier(make(state, "qcow2")), "qcow2")
    assert cache.clean(set()) == [], "an image that a build may be about to use was removed"
    assert os.path.exists(fresh)


def test_cleaning_ignores_a_running_download(state: pathlib.Path) -> None:
    cache, source, removed = ImageCache(), make(state, "qcow2"), []

    def download(path: str, admit: Callable[[int], None]) -> None:
        shutil.copyfile(source, path)
        removed.extend(ImageCache().clean(set()))

    assert os.path.exists(cache.fetch("one", download, "qcow2"))
    assert removed == []


# --- size limit of the cache -------------------------------------------------------------------------
def random(place: pathlib.Path, size: int) -> pathlib.Path:
    path = place / f"random{size}.raw"
    path.write_bytes(os.urandom(size))
    return path


def test_image_that_would_exceed_the_disk_is_not_converted(state: pathlib.Path,
                                                           impostor: Callable[[str], pathlib.Path]) -> None:
    source = make(state, "vmdk", 64 * MIB, "-o", "subformat=streamOptimized")
    assert source.stat().st_size < 2 * MIB
    place = impostor(f'mkdir -p $PLACE/$1; exec {shutil.which("qemu-img")} "$@"')
    with pytest.raises(exception.ImageUnacceptable, match=f"has {64 * MIB} bytes, and at most {16 * MIB}"):
        ImageCache().fetch("one", copier(source), "vmdk", 16 * MIB)
    assert not (place / "convert").exists()
    assert entries(ImageCache()) == []
    assert ImageCache().fetch("one", copier(source), "vmdk", 64 * MIB)
    assert (place / "convert").exists()


@pytest.mark.parametrize(("disk_format", "size"), [("raw", 17), ("qcow2", 34)], ids=["raw", "qcow2 with its tables"])
def test_image_larger_than_the_disk_is_not_downloaded(state: pathlib.Path, disk_format: str, size: int) -> None:
    def download(path: str, admit: Callable[[int], None]) -> None:
        admit(size * MIB)
        raise AssertionError("it was admitted")

    with pytest.raises(exception.ImageUnacceptable, match=r"has 1[78]\d{6} bytes"):
        ImageCache().fetch("one", download, disk_format, 16 * MIB)


def test_cache_size_limit_evicts_the_least_recently_used_image(state: pathlib.Path) -> None:
    CONF.set_override("size_limit_mb", 20, "image_cache")
    used: set[str] = set()
    cache = ImageCache(used=lambda: used)
    for name, age in (("used", 5000), ("old", 4000), ("older", 4500)):
        path = cache.fetch(name, copier(random(state, 6 * MIB)), "raw")
        os.utime(path, (time.time() - age,) * 2)
        used |= {path} if name == "used" else set()
    assert 18 * MIB <= cache.space.used() <= 20 * MIB
    cache.fetch("new", copier(random(state, 6 * MIB)), "raw")
    assert entries(cache) == ["new.raw", "old.raw", "used.raw"], "the least recently used image was not removed"
    with pytest.raises(exception.DiskFull, match="image cache"):
        cache.fetch("big", copier(random(state, 15 * MIB)), "raw")
    assert "used.raw" in entries(cache)
    assert "new.raw" in entries(cache), "an image that a build may be about to use was removed"
    with pytest.raises(exception.DiskFull):
        cache.fetch("huge", copier(random(state, 21 * MIB)), "raw")
    CONF.set_override("size_limit_mb", 0, "image_cache")
    assert cache.fetch("big", copier(random(state, 15 * MIB)), "raw")
    assert cache.space.reserved() == cache.space.used() > 20 * MIB


def test_cache_space_is_reserved_during_downloads(state: pathlib.Path) -> None:
    CONF.set_override("size_limit_mb", 20, "image_cache")
    small = copier(random(state, 6 * MIB))

    def download(path: str, admit: Callable[[int], None]) -> None:
        admit(16 * MIB)
        with pytest.raises(exception.DiskFull):
            ImageCache().fetch("other", small, "raw")
        raise exception.ImageBackendUnavailable(reason="gone")

    with pytest.raises(exception.ImageBackendUnavailable):
        ImageCache().fetch("one", download, "raw")
    assert ImageCache().fetch("other", small, "raw"), "a failed download still reserves space"
    assert ImageCache().fetch("more", copier(random(state, 12 * MIB)), "raw")


def test_cache_space_is_reserved_before_conversion(state: pathlib.Path) -> None:
    source = state / "data.vmdk"
    img("convert", "-f", "raw", "-O", "vmdk", str(random(state, 12 * MIB)), str(source))
    CONF.set_override("size_limit_mb", 20, "image_cache")
    with pytest.raises(exception.DiskFull):
        ImageCache().fetch("one", copier(source), "vmdk")
    assert entries(ImageCache()) == []
    CONF.set_override("size_limit_mb", 30, "image_cache")
    assert ImageCache().fetch("one", copier(source), "vmdk")


# --- disks -----------------------------------------------------------------------------------------
def _files(instance: Any) -> set[str]:
    """Return the files of the guest without the owner file."""
    return set(os.listdir(directories.directory(instance.uuid))) - {"owner"}


def test_root_disk_has_the_size_of_the_flavor(state: pathlib.Path) -> None:
    base = str(make(state, "qcow2"))
    for root_gb, size in ((0, 8 * MIB), (3, 3 << 30)):
        instance = server(flavor={"root_gb": root_gb})
        disk_making.make(instance, BootFiles(root=base, root_format="qcow2"), "h")
        found = facts(disks.inspect_disks(instance).root.path)
        assert (found["virtual-size"], found["backing-filename"]) == (size, base)
        assert found["backing-filename-format"] == "qcow2"
        assert disks.inspect_disks(instance).root.base == (base, "qcow2")
    assert disks.bases_in_use() == {base}
    assert (3 << 30) + 8 * MIB > disks.promised_bytes() > (3 << 30) + 6 * MIB
    directories.remove(instance.uuid, "h")
    directories.remove(instance.uuid, "h")
    assert not os.path.exists(directories.directory(instance.uuid))


def test_format_of_a_cached_image_is_taken_from_its_name(state: pathlib.Path) -> None:
    path = ImageCache().fetch("one", copier(make(state, "raw")), "ami")
    instance = server(flavor={"root_gb": 0})
    disk_making.make(instance, BootFiles(root=path), "h")
    assert facts(disks.inspect_disks(instance).root.path)["backing-filename-format"] == "raw"


def test_config_drive_can_be_created_in_the_guest_directory(state: pathlib.Path) -> None:
    instance = server()
    place = pathlib.Path(directories.directory(instance.uuid))
    place.mkdir(parents=True)
    drive = place / "disk.config"
    drive.write_bytes(bytes(0x8001) + b"CD001" + bytes(2048))
    disk_making.make(instance, BootFiles(root=str(make(state, "qcow2")), config_drive=str(drive)), "h")
    found = disks.inspect_disks(instance).config_drive
    assert (found.path, found.format, found.device) == (str(drive), "raw", "cdrom")
    assert drive.stat().st_mode & 0o777 == 0o600, "the drive may contain a password and must be private"


def test_root_disk_of_an_image_larger_than_the_flavor_is_refused(state: pathlib.Path) -> None:
    for kind in ("raw", "qcow2"):
        instance = server(flavor={"root_gb": 1})
        base = make(state, kind, (1 << 30) + MIB)
        with pytest.raises(exception.FlavorDiskTooSmall):
            disk_making.make(instance, BootFiles(root=str(base), root_format=kind), "h")
        assert _files(instance) == set()


def test_existing_disks_are_reused_and_partial_ones_created_again(state: pathlib.Path) -> None:
    base, kernel = make(state, "qcow2"), state / "vmlinuz"
    kernel.write_bytes(b"kernel")
    wanted = BootFiles(root=str(base), root_format="qcow2", kernel=str(kernel))
    instance = server(flavor={"swap": 8, "ephemeral_gb": 1})
    place = pathlib.Path(directories.directory(instance.uuid))
    place.mkdir(parents=True)
    for name in ("disk.part", "disk.swap.part", "disk.eph0.raw.part"):
        (place / name).write_bytes(b"half")
    disk_making.make(instance, wanted, "h")
    assert _files(instance) == {"disk", "kernel", "disk.swap", "disk.eph0"}
    before = {name: hashlib.sha256((place / name).read_bytes()).digest() for name in _files(instance)}
    identities = {name: (place / name).stat().st_ino for name in before}
    disk_making.make(instance, wanted, "h")
    assert {name: hashlib.sha256((place / name).read_bytes()).digest() for name in _files(instance)} == before
    assert {name: (place / name).stat().st_ino for name in before} == identities


@pytest.mark.parametrize(("filesystem", "kind"), [(None, "ext4"), ("ext3", "ext3"), ("swap", "ext4")])
def test_ephemeral_and_swap_disks_are_formatted(state: pathlib.Path, filesystem: str | None, kind: str) -> None:
    devices = [BlockDevice(source="blank", size_gb=1, guest_format=filesystem)]
    instance = server(flavor={"ephemeral_gb": 1, "swap": 16}, block_devices=devices)
    disk_making.make(instance, BootFiles(root=str(make(state, "qcow2")), root_format="qcow2"), "h")
    found = disks.inspect_disks(instance)
    assert len(found.ephemerals) == 1
    for disk, name, label in [*((one, kind, "ephemeral0") for one in found.ephemerals), (found.swap, "swap", "swap")]:
        raw = state / "out.raw"
        img("convert", "-f", "qcow2", "-O", "raw", disk.path, str(raw))
        shown = subprocess.run(["blkid", "-p", "-o", "export", str(raw)], capture_output=True, text=True, check=True,
                               timeout=20).stdout
        assert f"TYPE={name}" in shown
        assert f"LABEL={label}" in shown


def test_unusable_disks_are_refused_with_a_reason(state: pathlib.Path) -> None:
    base = str(make(state, "qcow2"))
    for wanted, instance, word in (
            (BootFiles(root=str(state / "none")), server(), "cache"),
            (BootFiles(root=str(make(state, "raw").rename(state / "other")), root_format="qcow2"), server(), "qcow2"),
            (BootFiles(root=base, kernel=str(state / "none")), server(), "none"),
            (BootFiles(root=base), server(block_devices=[BlockDevice(source="blank", size_gb=1, guest_format="zfs")]),
             "zfs")):
        with pytest.raises(exception.InvalidDiskInfo, match=word) as refusal:
            disk_making.make(instance, wanted, "h")
        assert str(state) not in refusal.value.message
        assert not any(name.endswith(".part") for name in _files(instance))


def test_iso_root_keeps_its_size(state: pathlib.Path) -> None:
    instance = server(disk_format="iso", flavor={"root_gb": 1})
    disk_making.make(instance, BootFiles(root=str(make(state, "raw")), root_format="raw"), "h")
    root = disks.inspect_disks(instance).root
    assert root.device == "cdrom"
    assert facts(root.path)["virtual-size"] == 8 * MIB


def test_interrupted_disk_removal_is_completed(state: pathlib.Path) -> None:
    instance = server()
    disk_making.make(instance, BootFiles(root=str(make(state, "qcow2")), root_format="qcow2"), "h")
    place = directories.directory(instance.uuid)
    os.rename(place, place + ".deleted")
    assert disks.bases_in_use() == set()
    directories.remove(instance.uuid, "h")
    assert os.listdir(CONF.instances_path) == []


def test_missing_root_disk_is_refused(state: pathlib.Path) -> None:
    with pytest.raises(exception.InvalidDiskInfo, match="root disk"):
        disks.inspect_disks(server())
    assert disks.inspect_disks(server(image=None)).root is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_full_disk_raises_disk_full_and_leaves_no_partial_files(state: pathlib.Path) -> None:
    source = state / "random.raw"
    source.write_bytes(os.urandom(6 * MIB))
    small = state / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True, timeout=10)
    try:
        CONF.set_override("state_path", str(small))
        CONF.set_override("size_limit_mb", 0, "image_cache")
        with pytest.raises(exception.DiskFull):
            ImageCache().fetch("one", copier(source), "raw")
        assert entries(ImageCache()) == []
        filler = small / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        for wanted, instance in ((BootFiles(root=str(source), root_format="raw"), server()),
                                 (BootFiles(kernel=str(source)), server()),
                                 (BootFiles(), server(flavor={"ephemeral_gb": 1}))):
            with pytest.raises(exception.DiskFull):
                disk_making.make(instance, wanted, "h")
            with contextlib.suppress(FileNotFoundError):
                assert _files(instance) == set()
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=10)


def test_output_of_a_failed_tool_is_logged_but_not_reported_to_users(
        state: pathlib.Path, impostor: Callable[[str], pathlib.Path], caplog: pytest.LogCaptureFixture) -> None:
    source = make(state, "vmdk")
    impostor('echo "Could not open /etc/nova/secret: Permission denied" >&2; exit 1')
    with pytest.raises(exception.ImageUnacceptable) as refusal:
        ImageCache().fetch("one", copier(source), "vmdk")
    with pytest.raises(exception.InvalidDiskInfo) as failure:
        qemuimg.create(str(state / "new"), "qcow2", MIB)
    for error in (refusal.value, failure.value):
        assert "qemu-img failed" in error.message
        assert "/" not in error.message
    assert "Could not open /etc/nova/secret" in caplog.text, "the output is missing in the log"


def test_tool_is_stopped_after_its_time_and_cpu_limits() -> None:
    started = time.monotonic()
    with pytest.raises(exception.InvalidDiskInfo, match="longer"):
        qemuimg.run(["sleep", "60"], timeout=0.5)
    with pytest.raises(exception.InvalidDiskInfo, match="killed"):
        qemuimg.run(["sh", "-c", "while :; do :; done"], timeout=30, cpu=1)
    assert time.monotonic() - started < 20


def test_image_formats_are_detected_by_content(state: pathlib.Path) -> None:
    for kind in ("qcow2", "vmdk", "vdi", "vhdx", "qed"):
        assert set(image_formats.inspect(str(make(state, kind)))) == {"raw", kind}
    assert set(image_formats.inspect(str(state / "data.raw"))) == {"raw"}
    assert Image(id="x").disk_format not in image_formats.DISK_FORMATS


# --- qemu-img and the host -------------------------------------------------------------------------
@pytest.mark.parametrize("embedded", [False, True])
def test_vmdk_descriptor_with_host_paths_is_refused_without_opening_files(
        state: pathlib.Path, impostor: Callable[[str], pathlib.Path], embedded: bool) -> None:
    place = impostor(f'mkdir -p $PLACE/called; exec {shutil.which("qemu-img")} "$@"')
    there, told = place / "there", set()
    there.write_bytes(b"s" * MIB)
    for path in (there, place / "missing"):
        text = ('# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n'
                f'createType="monolithicFlat"\nRW 2048 FLAT "{path}" 0\n').encode()
        if embedded:
            text = struct.pack("<4sIIQQQQIQQ", b"KDMV", 1, 3, 0, 128, 1, 20, 512, 0, 21).ljust(512, b"\0") + text
        (state / "bad.vmdk").write_bytes(text.ljust(MIB, b"\0") if embedded else text)
        with pytest.raises(exception.ImageUnacceptable) as refusal:
            ImageCache().fetch("one", copier(state / "bad.vmdk"), "vmdk")
        told.add(refusal.value.message)
    assert len(told) == 1, "the error reveals whether a file exists"
    assert str(place) not in told.pop()
    assert not (place / "called").exists(), "qemu-img was run on the descriptor"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_qemu_img_runs_with_restricted_privileges(state: pathlib.Path, impostor: Callable[[str], pathlib.Path]) -> None:
    place = impostor("""echo "{\\"uid\\": $(id -u), \\"groups\\": \\"$(id -G)\\", \\"cpu\\": $(ulimit -t),"
        grep NoNewPrivs /proc/self/status | sed 's/.*:\\t\\(.*\\)/"rises": \\1,/'
        echo "\\"memory\\": $(ulimit -v), \\"written\\": $(ulimit -f), \\"secrets\\": \\"$OS_PASSWORD\\"}" """)
    os.environ["OS_PASSWORD"] = "sesame"
    try:
        found = qemuimg.info(str(make(state, "raw")), "raw")
    finally:
        del os.environ["OS_PASSWORD"]
    nobody = pwd.getpwnam("nobody")
    assert (found["uid"], found["groups"]) == (nobody.pw_uid, str(nobody.pw_gid))
    assert (found["cpu"], found["memory"], found["written"], found["secrets"]) == (30, 2 << 20, 0, "")
    assert found["rises"] == 1
    impostor("cat /proc/self/fd/0 > /dev/null; head -c 1 /etc/shadow && echo opened > $PLACE/opened; exit 1")
    with pytest.raises(exception.InvalidDiskInfo):
        qemuimg.info(str(state / "data.raw"), "raw")
    assert not (place / "opened").exists()


def test_conversion_writes_at_most_the_size_of_the_disk(state: pathlib.Path) -> None:
    source = state / "random.raw"
    source.write_bytes(os.urandom(40 * MIB))
    source.chmod(0o644)
    with pytest.raises((exception.DiskFull, exception.InvalidDiskInfo)):
        qemuimg.convert(str(source), "raw", str(state / "out"), "qcow2", 8 * MIB)
    assert (state / "out").stat().st_size <= qemuimg.most_bytes(8 * MIB)
    qemuimg.convert(str(source), "raw", str(state / "out"), "qcow2", 40 * MIB)
    assert facts(state / "out")["virtual-size"] == 40 * MIB
    assert (state / "out").stat().st_uid == os.geteuid()


def test_missing_images_user_is_named_in_the_error(state: pathlib.Path) -> None:
    CONF.set_override("images_user", "nobody-here", "libvirt")
    try:
        if os.geteuid() == 0:
            with pytest.raises(exception.InvalidInput, match="there is no user nobody-here"):
                qemuimg.info(str(make(state, "qcow2")), "qcow2")
        CONF.set_override("images_user", "", "libvirt")
        assert qemuimg.info(str(make(state, "qcow2")), "qcow2")["virtual-size"] == 8 * MIB
    finally:
        CONF.clear_override("images_user", "libvirt")
