"""The User Mode Linux driver without guests: copy-on-write files, definitions, users, console logs."""

import os
import random
import struct

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.uml import cow, definition, guests, supervisor
from nova.virt.uml.disks import bases_in_use, present, root_of
from tests.unit.virt.guests import interface, server

SECTOR = 512


@pytest.fixture(autouse=True)
def place(tmp_path):
    """Return the directory of the guest of server()."""
    register(CONF)
    CONF.set_override("state_path", str(tmp_path))
    made = tmp_path / "instances" / server().uuid
    made.mkdir(parents=True)
    yield made
    CONF.clear_override("state_path")


def write_sectors(path, size, sectors):
    """Write sectors into a copy-on-write file as the kernel does."""
    layout = cow.Layout(size)
    with open(path, "r+b") as file:
        for number, data in sectors.items():
            file.seek(layout.bitmap_at + number // 8)
            bits = file.read(1)[0] | 1 << number % 8
            file.seek(layout.bitmap_at + number // 8)
            file.write(bytes([bits]))
            file.seek(layout.data_at + number * SECTOR)
            file.write(data)


def test_flattened_disk_has_the_written_sectors_and_those_of_the_image(tmp_path):
    base, disk = tmp_path / "base", tmp_path / "disk.cow"
    content = bytearray(random.Random(1).randbytes(100 * SECTOR))
    base.write_bytes(content)
    cow.create(str(disk), str(base))
    written = {number: random.Random(number).randbytes(SECTOR) for number in (0, 7, 8, 9, 50, 98, 99)}
    write_sectors(disk, len(content), written)
    for number, data in written.items():
        content[number * SECTOR:(number + 1) * SECTOR] = data
    cow.flatten(str(disk), str(tmp_path / "flat"))
    assert (tmp_path / "flat").read_bytes() == content
    assert cow.base_of(str(disk)) == str(base)


def test_header_follows_the_modification_time_of_the_image_but_not_its_size(tmp_path):
    base, disk = tmp_path / "base", tmp_path / "disk.cow"
    base.write_bytes(bytes(4 * SECTOR))
    cow.create(str(disk), str(base))
    os.utime(base, (1, 12345))
    cow.renew(str(disk))
    assert struct.unpack(">I", disk.read_bytes()[8:12]) == (12345,)
    os.truncate(base, 5 * SECTOR)
    with pytest.raises(exception.InvalidDiskInfo, match="size"):
        cow.renew(str(disk))
    base.unlink()
    with pytest.raises(exception.InvalidDiskInfo, match="missing"):
        cow.renew(str(disk))


def test_raw_disk_with_a_copy_on_write_header_stays_a_raw_disk(place, tmp_path):
    """A guest can write such a header, with the path of any file of the host, to its raw disk."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(SECTOR))
    cow.create(str(place / "disk"), str(secret))
    assert root_of(str(place)) == "disk"
    assert bases_in_use() == set()
    made = definition.of_instance(server(), str(place), None, 1000, None)
    assert [disk.setting() for disk in made.disks] == ["ubdad=disk"]


def volume(number, name=None, **fields):
    return BlockDevice(source="volume", destination="volume", volume_id=f"v{number}", device_name=name,
                       connection=VolumeConnection(volume_id=f"v{number}", path=f"/dev/disk:{number},x"), **fields)


def test_devices_keep_their_names(place):
    for name in ("disk", "disk.eph0", "disk.swap", "disk.config"):
        (place / name).write_bytes(bytes(SECTOR))
    assert present(str(place)) == ["disk", "disk.eph0", "disk.swap", "disk.config"]
    instance = server(block_devices=[volume(1), volume(2, "/dev/vdh")], network_info=[interface(0), interface(1)])
    first = definition.of_instance(instance, str(place), None, None, None)
    assert {disk.key: disk.letter for disk in first.disks} == {
        "disk": "a", "disk.eph0": "b", "disk.swap": "c", "disk.config": "d", "volume:v1": "e", "volume:v2": "h"}
    settings = [disk.setting() for disk in first.disks]
    assert settings[3:5] == ["ubddrd=disk.config", "ubded=volume.e"], "a path may contain the separators"
    first.store(str(place))
    instance.block_devices = [volume(3), volume(2)]
    instance.network_info = [interface(1), interface(2)]
    again = definition.of_instance(instance, str(place), definition.load(str(place)), None, None)
    assert {disk.volume_id: disk.letter for disk in again.disks if disk.volume_id} == {"v3": "f", "v2": "h"}
    assert [nic.index for nic in again.nics] == [1, 2]


def test_server_that_boots_from_a_volume_has_it_as_first_disk(place):
    (place / "disk.swap").write_bytes(bytes(SECTOR))
    instance = server(block_devices=[volume(2), volume(1, boot_index=0)])
    made = definition.of_instance(instance, str(place), None, None, None)
    assert [(disk.letter, disk.key) for disk in made.disks] == [
        ("a", "volume:v1"), ("b", "volume:v2"), ("c", "disk.swap")]


def test_more_disks_than_letters_are_refused(place):
    (place / "disk").write_bytes(bytes(SECTOR))
    instance = server(block_devices=[volume(number) for number in range(16)])
    with pytest.raises(exception.TooManyDiskDevices, match="16"):
        definition.of_instance(instance, str(place), None, None, None)


@pytest.mark.parametrize(("entries", "expected"), [
    ([], ""), ([(0x0E, 100), (0x83, 50)], "2"), ([(0x83, 10), (0x83, 20), (0x82, 90)], "2"), ([(0x0C, 5)], "")])
def test_root_partition_is_the_largest_linux_partition(place, entries, expected):
    sector = bytearray(SECTOR)
    if entries:
        sector[510:] = b"\x55\xaa"
    for number, (kind, size) in enumerate(entries):
        sector[446 + 16 * number + 4] = kind
        sector[446 + 16 * number + 12:446 + 16 * number + 16] = size.to_bytes(4, "little")
    (place / "disk").write_bytes(sector)
    made = definition.of_instance(server(), str(place), None, None, None)
    made.store(str(place))
    assert f"root=/dev/ubda{expected}" in made.arguments
    assert "hostfs=/dev/null/none" in made.arguments


def test_disk_with_a_gpt_is_refused(place):
    sector = bytearray(SECTOR)
    sector[510:], sector[450] = b"\x55\xaa", 0xEE
    (place / "disk").write_bytes(sector)
    with pytest.raises(exception.InvalidDiskInfo, match="GPT"):
        definition.of_instance(server(), str(place), None, None, None).store(str(place))


def test_user_ids_are_unique_and_never_root():
    CONF.set_override("user_ids", "7000-7002", "uml")
    try:
        assert guests._free_user(set()) == 7000
        assert guests._free_user({7000, 7002}) == 7001
        with pytest.raises(exception.NovaException, match="user_ids"):
            guests._free_user({7000, 7001, 7002})
        for wrong in ("0-10", "x-y"):
            CONF.set_override("user_ids", wrong, "uml")
            with pytest.raises(exception.InvalidInput, match="user_ids"):
                guests._free_user(set())
    finally:
        CONF.clear_override("user_ids", "uml")


def test_console_log_is_bounded_and_keeps_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = supervisor.ConsoleLog(limit=1000)
    for number in range(1000):
        log.append(f"line {number}\n".encode())
    text = (tmp_path / supervisor.CONSOLE_LOG).read_bytes()
    assert 1000 <= len(text) <= 2000
    assert text.endswith(b"line 999\n")
    # A restarted supervisor continues the log.
    supervisor.ConsoleLog(limit=1000).append(b"next\n")
    assert (tmp_path / supervisor.CONSOLE_LOG).read_bytes() == text + b"next\n"
