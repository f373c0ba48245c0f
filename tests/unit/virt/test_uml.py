"""The User Mode Linux driver without guests: copy-on-write files, definitions, users, console logs."""

import contextlib
import os
import random
import socket
import struct
import tempfile
import threading

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.uml import cow, definition, disks, guests, process, supervisor
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


def create(disk, base):
    cow.create(str(disk), str(base))
    cow.record(str(disk), str(disk) + cow.RECORD)


def test_header_that_the_guest_has_changed_is_not_read(place, tmp_path):
    """The guest's user owns the disk, and could name any file of the host as its image, or any size."""
    base, secret, disk = tmp_path / "base", tmp_path / "secret", place / "disk.cow"
    base.write_bytes(b"image".ljust(8 * SECTOR))
    secret.write_bytes(b"secret".ljust(8 * SECTOR))
    create(disk, base)
    genuine = disk.read_bytes()
    forged = tmp_path / "forged"
    os.truncate(secret, 1 << 40)
    cow.create(str(forged), str(secret))
    with open(forged, "rb") as file, open(disk, "r+b") as output:
        output.write(file.read(cow.Layout(SECTOR).bitmap_at))
    assert (cow.base_of(str(disk)), cow.size_of(str(disk))) == (str(base), 8 * SECTOR)
    assert bases_in_use() == {str(base)}
    cow.flatten(str(disk), str(tmp_path / "flat"))
    assert (tmp_path / "flat").read_bytes() == base.read_bytes()
    cow.renew(str(disk))
    assert disk.read_bytes() == genuine
    os.truncate(disk, cow.Layout(SECTOR).bitmap_at)
    with pytest.raises(exception.InvalidDiskInfo, match="damaged"):
        cow.flatten(str(disk), str(tmp_path / "flat"))
    (place / f"disk.cow{cow.RECORD}").unlink()
    with pytest.raises(exception.InvalidDiskInfo, match="missing"):
        cow.base_of(str(disk))


def test_record_of_the_image_is_made_again_after_a_crash_and_replaced_by_a_rebuild(place, tmp_path):
    images = []
    for name in ("old", "new"):
        image = tmp_path / f"{name}.raw"
        image.write_bytes(name.encode().ljust(SECTOR))
        images.append(BootFiles(root=str(image), root_format="raw"))
    instance = server(flavor={"root_gb": 0})
    record = place / f"disk.cow{cow.RECORD}"
    record.write_text("77 /image/of/a/removed/disk")
    disks.make(instance, images[0], "host")
    assert cow.base_of(str(place / "disk.cow")) == images[0].root
    record.unlink()
    disks.make(instance, images[0], "host")
    assert cow.base_of(str(place / "disk.cow")) == images[0].root
    disks.make_anew(instance, images[1], "host", "token", False, lambda: None)
    assert cow.base_of(str(place / "disk.cow")) == images[1].root
    disks.flatten_root(str(place))
    assert sorted(os.listdir(place)) == ["disk", "owner", "rebuilt"]
    disks.make(instance, images[0], "host")
    assert bases_in_use() == set()


@pytest.mark.parametrize("answer", [b"short", process._REPLY.pack(0, 1, 4) + bytes(2000)], ids=["short", "endless"])
def test_malformed_and_endless_answers_of_a_kernel_end(answer):
    """A tenant who controls the kernel could otherwise hold a thread of nova-compute and fill its memory."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as kernel:
        path = os.path.join(place, supervisor.RUN, supervisor.UMID, "mconsole")
        os.makedirs(os.path.dirname(path))
        kernel.bind(path)
        kernel.settimeout(5)

        def respond():
            sender = kernel.recvfrom(8192)[1]
            with contextlib.suppress(OSError):
                while True:
                    kernel.sendto(answer, sender)

        thread = threading.Thread(target=respond)
        thread.start()
        with pytest.raises(exception.GuestNotRunning):
            process.request(server().uuid, place, "version")
        thread.join()


def test_users_with_processes_on_the_host_are_not_given_to_guests():
    assert os.getuid() in process.users()


def test_flattened_disk_has_the_written_sectors_and_those_of_the_image(tmp_path):
    base, disk = tmp_path / "base", tmp_path / "disk.cow"
    content = bytearray(random.Random(1).randbytes(100 * SECTOR))
    base.write_bytes(content)
    create(disk, base)
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
    create(disk, base)
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
