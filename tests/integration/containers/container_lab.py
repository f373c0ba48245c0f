"""A private libvirtd with its lxc driver, and a tiny root file system (busybox) as tar, raw and qcow2 images."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from nova.conf import CONF, register
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.libvirt_fixtures import PrivateLibvirt

_LXC = pathlib.Path("/usr/lib/libvirt/libvirt_lxc")
_BUSYBOX = pathlib.Path("/bin/busybox")


def missing_for_containers() -> str:
    """Return the reason why this machine cannot run containers, or ""."""
    has_all = os.geteuid() == 0 and _LXC.exists() and _BUSYBOX.exists() and shutil.which("libvirtd")
    return "" if has_all else "needs root, libvirtd with its lxc driver, and busybox-static"


needs_containers = pytest.mark.skipif(bool(missing_for_containers()), reason=missing_for_containers() or "-")

_INITTAB = """\
::sysinit:/bin/sh /etc/rc
::respawn:-/bin/sh
::ctrlaltdel:/bin/reboot
"""
_RC = """\
[ -f /etc/boots ] && read boots < /etc/boots
echo $((boots + 1)) > /etc/boots
echo "container ready: $(hostname), boot $((boots + 1))"
"""
# Configures the interface by DHCP and prints the server's id from the metadata service.
_NETWORK = """\
ip link set lo up
ip link set eth0 up && udhcpc -i eth0 -n -q -t 30 -T 1 -s /etc/dhcp > /dev/null
# A container boots before the namespace of a new network serves metadata.
until id=$(wget -q -O - http://169.254.169.254/latest/meta-data/instance-id); do sleep 1; done
echo "metadata: $id"
"""
_DHCP = """\
#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
for gateway in $router; do ip route add default via $gateway; done
"""
_APPLETS = ("sh", "mount", "umount", "hostname", "ip", "cat", "echo", "ls", "poweroff", "reboot", "sleep", "sync", "df",
            "dd", "wget", "udhcpc", "touch", "head", "od", "mkdir", "mke2fs", "tr")


def make_archive(path: pathlib.Path, compression: str = "", network: bool = False) -> pathlib.Path:
    """Write the root file system as a tar archive, also with a file that belongs to another user. ``network``: the
    container uses its interface."""
    with tarfile.open(path, f"w:{compression}") as archive:
        for name in ("bin", "sbin", "etc", "proc", "sys", "dev", "tmp", "root", "mnt"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        archive.add(_BUSYBOX.resolve(), "bin/busybox")
        for link, target in [(f"bin/{name}", "busybox") for name in _APPLETS] + [("sbin/init", "../bin/busybox")]:
            item = tarfile.TarInfo(link)
            item.type, item.linkname = tarfile.SYMTYPE, target
            archive.addfile(item)
        for name, text, owner in (("etc/inittab", _INITTAB, 0), ("etc/rc", _RC + (_NETWORK if network else ""), 0),
                                  ("etc/dhcp", _DHCP, 0), ("root/of-user", "7", 1007)):
            item, content = tarfile.TarInfo(name), text.encode()
            item.size, item.mode, item.uid, item.gid = len(content), 0o755, owner, owner
            archive.addfile(item, io.BytesIO(content))
    return path


def make_file_system(archive: pathlib.Path, path: pathlib.Path, size_mb: int = 16) -> pathlib.Path:
    """Write the root file system of the archive as an ext4 file system without partitions."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["tar", "-xf", archive, "-C", place], check=True, timeout=60)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", place, path, f"{size_mb}M"], check=True, timeout=60)
    return path


def make_partitioned(file_system: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Write a disk with a small EFI partition and the file system in a Linux partition."""
    with open(path, "wb") as file:
        file.truncate((file_system.stat().st_size >> 20) + 4 << 20)
    size = file_system.stat().st_size >> 20
    subprocess.run(["sfdisk", "-q", path], input=f"label: gpt\nsize=1MiB, type=U\nsize={size}MiB, type=L\n", text=True,
                   check=True, capture_output=True, timeout=60)
    subprocess.run(["dd", f"if={file_system}", f"of={path}", "bs=1M", "seek=2", "conv=notrunc"], check=True,
                   capture_output=True, timeout=60)
    return path


@contextlib.contextmanager
def container_daemon(name: str = "") -> Iterator[PrivateLibvirt]:
    """Start a libvirtd with a bridge br0 in a network namespace of its own."""
    place = tempfile.mkdtemp(prefix="nova-lxc.", dir="/var/tmp")
    os.chmod(place, 0o755)  # noqa: S103
    daemon = PrivateLibvirt(place, name, driver="lxc")
    try:
        daemon.start()
        daemon.run("ip", "link", "add", "br0", "type", "bridge")
        daemon.run("ip", "link", "set", "br0", "up")
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def container_driver(daemon: PrivateLibvirt, events: list[Any]) -> Iterator[LibvirtDriver]:
    """Start a driver with a state_path of its own, and remove the remaining containers afterwards."""
    register(CONF)
    place = tempfile.mkdtemp(prefix="state.", dir=daemon.place)
    options = {("state_path", None): place, ("virt_type", "libvirt"): "lxc", ("connection_uri", "libvirt"): daemon.uri}
    for (option, group), value in options.items():
        CONF.set_override(option, value, group)
    driver = LibvirtDriver(f"test-{uuid.uuid4().hex[:8]}")
    try:
        driver.start(events.append)
        yield driver
    finally:
        for guest in driver.guests.all():
            driver.guests.remove_orphan(guest.uuid)
        driver.stop()
        for option, group in options:
            CONF.clear_override(option, group)


def loops_of(path: str | pathlib.Path) -> list[str]:
    """Return the loop devices of files below a directory."""
    output = subprocess.run(["losetup", "--noheadings", "--output", "NAME,BACK-FILE"], check=True, capture_output=True,
                            text=True, timeout=30).stdout
    return [line.split()[0] for line in output.splitlines() if str(path) in line]
