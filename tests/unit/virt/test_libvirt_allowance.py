"""File descriptions of another host are compared with the server's allowance before any file is created."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.moves import DiskFile, DiskSource, MigrationSource
from nova.virt.guest_files import disk_server
from nova.virt.libvirt.cold_migration import ColdMigration
from nova.virt.libvirt.files import copies
from nova.virt.libvirt.live_migration import LiveMigrationTarget
from nova.virt.libvirt.xml.settings import Settings
from tests.unit.virt.guests import server
from tests.unit.virt.test_image_formats import qcow2

MIB, GIB = 1 << 20, 1 << 30
FLAVOR = {"root_gb": 2, "ephemeral_gb": 1, "swap": 64}


class Nobody:
    """A fake of the guests of a host without guests."""

    name = "here"
    settings = Settings(owner="here")

    def __init__(self) -> None:
        self.locks = self.host = self

    def hold(self, _uuid: str, _timeout: object = None) -> Any:
        return contextlib.nullcontext()

    def call(self, _asked: object) -> int:
        return 8_000_000

    def exists(self, _uuid: str) -> bool:
        return False

    def on_domain_or(self, _uuid: str, _what: object, otherwise: Any) -> Any:
        return otherwise

    def definition_of(self, _instance: Instance) -> str:
        return "<domain/>"


@pytest.fixture
def fetched(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the names of the requested files; every file is sent as a disk of 2 GiB."""
    names: list[str] = []

    def fetch(_uuid: str, _served: object, name: str, length: int, path: str) -> None:
        names.append(name)
        pathlib.Path(path).write_bytes(qcow2(size=2 * GIB)[:length])

    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    monkeypatch.setattr(disk_server, "fetch", fetch)
    yield names
    CONF.clear_override("state_path")


def disk(name: str = "disk", size: int = 2 * GIB, length: int = MIB, **more: str) -> DiskFile:
    return DiskFile(name=name, size=size, length=length, **more)


def plain(name: str, length: int) -> DiskFile:
    return DiskFile(name=name, format="raw", size=-(-length // 512) * 512, length=length)


def move(instance: Instance, source: DiskSource) -> None:
    ColdMigration(Nobody()).receive_disks(instance, source)  # type: ignore[arg-type]


def migrate(instance: Instance, source: DiskSource) -> None:
    """Prepare a live migration in which the root disk changes and the other disks do not."""
    changing = [file for file in source.files if file.name == "disk"]
    still = [file for file in source.files if file.name != "disk"]
    told = MigrationSource(host="hostile", token="t", disks=changing,
                           served=DiskSource(host="hostile", files=still, bases=source.bases))
    LiveMigrationTarget(Nobody()).prepare(instance, told, None)  # type: ignore[arg-type]


def made(tmp_path: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))


TOO_LARGE = [
    disk(size=2 * GIB + 512), disk(length=3 * GIB), disk(size=1 << 62), disk(length=1 << 62), disk(length=-1),
    disk(size=-1), disk("disk.eph0", GIB + 512), disk("disk.eph1", GIB), disk("disk.eph00", GIB),
    disk("disk.eph999999", 512), plain("disk.config", 64 * MIB + 1), plain("nvram", 64 * MIB + 1),
    plain("kernel", 512 * MIB + 1), plain("ramdisk", 512 * MIB + 1), disk("disk.swap", 64 * MIB, length=1 << 40),
]


@pytest.mark.parametrize("come", [move, migrate])
@pytest.mark.parametrize("file", TOO_LARGE, ids=lambda file: f"{file.name} {file.size} {file.length}")
def test_files_larger_than_the_allowance_are_refused_before_creation(
        fetched: list[str], tmp_path: pathlib.Path, come: Any, file: DiskFile) -> None:
    good = [disk()] if file.name != "disk" else []
    with pytest.raises(exception.MigrationError, match=r"than the server may have|is not a file of the server"):
        come(server(flavor=FLAVOR), DiskSource(host="hostile", token="t", files=[*good, file]))
    assert fetched == []
    assert made(tmp_path) == []


@pytest.mark.parametrize("come", [move, migrate])
def test_duplicate_file_is_refused(fetched: list[str], tmp_path: pathlib.Path, come: Any) -> None:
    with pytest.raises(exception.MigrationError, match="two files with the same name"):
        come(server(flavor=FLAVOR), DiskSource(host="hostile", token="t", files=[disk("disk.eph0", GIB)] * 2))
    assert made(tmp_path) == []


def test_files_within_the_allowance_are_received(fetched: list[str], tmp_path: pathlib.Path) -> None:
    files = [disk(), plain("disk.config", 64 * MIB), plain("nvram", 64 * MIB), plain("kernel", 512 * MIB),
             plain("ramdisk", 512 * MIB)]
    move(server(flavor=FLAVOR), DiskSource(host="other", token="t", files=files))
    assert fetched == [file.name for file in files]


def test_received_disk_must_match_its_described_size(fetched: list[str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(exception.MigrationError, match="does not match the description of the other host"):
        move(server(flavor=FLAVOR), DiskSource(host="hostile", token="t", files=[disk(size=GIB)]))
    assert not list(tmp_path.rglob("disk"))


def test_swap_disk_is_not_copied(fetched: list[str], tmp_path: pathlib.Path) -> None:
    """The destination creates the swap disk with the size of the flavor, so no file is copied."""
    move(server(flavor=FLAVOR), DiskSource(host="other", token="t", files=[disk("disk.swap", 128 * MIB)]))
    assert fetched == []


def test_root_disk_of_a_volume_backed_server_is_refused(fetched: list[str], tmp_path: pathlib.Path) -> None:
    volume = BlockDevice(source="volume", destination="volume", volume_id="v", boot_index=0)
    with pytest.raises(exception.MigrationError, match="is not a file of the server"):
        move(server(flavor=FLAVOR, image_ref="", image=None, block_devices=[volume]),
             DiskSource(host="hostile", token="t", files=[disk()]))
    assert made(tmp_path) == []


@pytest.mark.parametrize("come", [move, migrate])
@pytest.mark.parametrize(("base", "file", "root_gb"), [
    (plain("image.raw", 3 * GIB), disk(), 2),
    (disk("image.qcow2", length=-1), disk(), 2),
    # A flavor without a root disk size: the disk is as large as the image.
    (plain("image.raw", GIB), disk(), 0),
    (None, disk(), 0),
    (plain("image.raw", 2 * GIB), disk("disk.eph0", GIB), 2),
])
def test_base_image_larger_than_its_disk_is_refused(
        fetched: list[str], tmp_path: pathlib.Path, come: Any, base: DiskFile | None, file: DiskFile,
        root_gb: int) -> None:
    if base is not None:
        file.base, file.base_format = base.name, base.format
    source = DiskSource(host="hostile", token="t", files=[file], bases=[base] if base else [])
    with pytest.raises(exception.MigrationError):
        come(server(flavor={**FLAVOR, "root_gb": root_gb}), source)
    assert fetched == []
    assert made(tmp_path) == []


@pytest.mark.parametrize(("base", "size", "told"), [
    (plain("image.raw", GIB), 2 * GIB, {"flavor": FLAVOR}),
    # Completely allocated qcow2 metadata, and internal snapshots.
    (disk("image.qcow2", length=2 * GIB + MIB), 2 * GIB, {"flavor": FLAVOR}),
    (disk("image.qcow2", GIB, length=5 * GIB), GIB,
     {"flavor": {"root_gb": 0}, "image": Image(id="image", disk_format="qcow2", size=5 * GIB)}),
    # The disk is as large as the image, for any flavor.
    (plain("image.raw", 3 * GIB), 3 * GIB, {"flavor": {"root_gb": 0}}),
    (plain("image.raw", 3 * GIB - 1), 3 * GIB,
     {"flavor": FLAVOR, "image": Image(id="image", disk_format="iso", size=3 * GIB - 1)}),
    (disk("image.qcow2", 3 * GIB), 3 * GIB,
     {"flavor": {"root_gb": 0}, "image": Image(id="image", disk_format="qcow2", size=MIB, virtual_size=3 * GIB)}),
])
def test_disk_with_a_valid_base_image_is_accepted(fetched: list[str], base: DiskFile, size: int,
                                                  told: dict[str, Any]) -> None:
    root = disk(size=size, length=MIB, base=base.name, base_format=base.format)
    copies.check_allowed(server(**told), [root], [base])


@pytest.mark.parametrize("image", [
    Image(id="image", disk_format="qcow2", size=MIB, virtual_size=GIB), Image(id="image", disk_format="raw", size=GIB)])
def test_disk_without_flavor_size_is_limited_by_the_image_size(fetched: list[str], image: Image) -> None:
    base = disk("image.qcow2", 3 * GIB)
    root = disk(size=3 * GIB, base=base.name, base_format=base.format)
    with pytest.raises(exception.MigrationError, match="than the server may have"):
        copies.check_allowed(server(flavor={"root_gb": 0}, image=image), [root], [base])


def test_oversized_domain_definition_is_refused(fetched: list[str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(exception.MigrationError, match="definition"):
        move(server(), DiskSource(host="hostile", token="t", definition=f"<domain><!--{'x' * (1 << 20)}--></domain>"))
    assert made(tmp_path) == []
