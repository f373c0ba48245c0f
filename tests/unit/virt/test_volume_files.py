"""The files of a volume with snapshots, and the libvirt calls for them."""

import xml.etree.ElementTree as ET

import pytest

from nova import exception
from nova.virt.volume_files import is_merged, merged, was_merged

libvirt = pytest.importorskip("libvirt")

from nova.virt.libvirt import devices  # noqa: E402
from nova.virt.libvirt.xml.definition import Definition  # noqa: E402

FILES = ["c", "b", "a", "raw"]
DISK = """
<domain><devices>
  <disk type="file" device="disk"><source file="/d/root"/><backingStore/><target dev="vda" bus="virtio"/></disk>
  <disk type="file" device="cdrom"><target dev="sda" bus="sata"/></disk>
  <disk type="file" device="disk">
    <driver name="qemu" type="qcow2"/><source file="/s/c" index="4"/>
    <backingStore type="file" index="3"><format type="qcow2"/><source file="/s/b"/>
      <backingStore type="file" index="1"><format type="raw"/><source file="/s/a"/><backingStore/></backingStore>
    </backingStore>
    <target dev="vdb" bus="virtio"/><serial>v</serial>
  </disk>
</devices></domain>
"""


class Domain:
    """A record of the calls to a domain."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def __getattr__(self, name: str):
        return lambda *values: self.asked.append((name, *values))


@pytest.mark.parametrize(("top", "base", "left"), [
    ("b", "a", ["c", "a", "raw"]), ("b", "raw", ["c", "raw"]), ("a", "raw", ["c", "b", "raw"]),
    ("a", None, ["c", "a", "raw"]), ("raw", None, ["c", "raw"]), (None, None, ["c"])])
def test_completed_merge_is_detected(top, base, left):
    assert not is_merged("v", FILES, top, base)
    assert merged(FILES, top, base) == left
    assert is_merged("v", left, top, base)


@pytest.mark.parametrize(("top", "base", "why"), [
    ("c", "a", "writes to c"), ("a", "b", "is not an overlay of"), ("a", "a", "is not an overlay of"),
    ("c", None, "writes to c"), ("x", None, "the guest lacks x"), ("b", "x", "the guest lacks x")])
def test_impossible_merge_is_reported(top, base, why):
    with pytest.raises(exception.VolumeSnapshotFailed, match=why):
        is_merged("v", FILES, top, base)
    assert not was_merged(FILES, top, base)


def test_empty_chain_is_not_merged():
    assert not was_merged([], None, None)
    assert not was_merged([], "b", "a")


def test_disk_files_are_read_from_the_domain_definition():
    disks = Definition(DISK).disks
    assert devices.paths_of(disks["v"].element) == ["/s/c", "/s/b", "/s/a"]
    assert devices.paths_of(disks["root"].element) == ["/d/root"]
    assert devices.paths_of(ET.fromstring('<disk><source protocol="rbd" name="x"/></disk>')) == []


def test_snapshot_xml_covers_a_single_disk():
    root = ET.fromstring(devices.snapshot_xml("vdb", "/s/<d>&", ["vda", "sda", "vdb"]))
    assert [(disk.get("name"), disk.get("snapshot")) for disk in root.iterfind("disks/disk")] == [
        ("vda", "no"), ("sda", "no"), ("vdb", "external")]
    disk = root.find("disks/disk[@name='vdb']")
    assert (disk.get("type"), disk.find("driver").get("type"), disk.find("source").get("file")) == (
        "file", "qcow2", "/s/<d>&")


@pytest.mark.parametrize(("top", "base", "asked"), [
    ("b", "a", ("blockCommit", "vdb", "/s/a", "/s/b", 0, libvirt.VIR_DOMAIN_BLOCK_COMMIT_RELATIVE)),
    ("a", None, ("blockRebase", "vdb", "/s/a", 0, libvirt.VIR_DOMAIN_BLOCK_REBASE_RELATIVE)),
    (None, None, ("blockPull", "vdb", 0))])
def test_merge_calls_use_the_file_names_of_libvirt(top, base, asked):
    domain = Domain()
    devices._merger(Definition(DISK).disks["v"], top, base)(domain)
    assert domain.asked == [asked]
