"""Two compute hosts on one machine, each with its own namespaces, libvirtd and driver process, joined by a cable."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from tests.integration.libvirt.driver_host import RemoteDriver
from tests.integration.libvirt_fixtures import PrivateLibvirt, kernel_disks, wait_for
from tests.paths import ROOT

# At every boot but the first, prints a line stored on the root disk, the memory size and the disk size.
NOTE = """#!/bin/sh
echo 'the note of the first boot' > /var/lib/note
echo 'cat /var/lib/note; grep MemTotal /proc/meminfo; echo "sectors $(cat /sys/block/vda/size)"' >> /etc/init.d/boot
sync
"""
# Prints a counter twice a second.
COUNT = """#!/bin/sh
( i=0; while :; do i=$((i + 1)); echo "tick $i" > /dev/ttyS0; usleep 500000; done ) &
"""


class LabHost:
    """A compute host. ``state`` is its state_path outside the mount namespace; inside, the path is the same on both
    hosts."""

    def __init__(self, base: str, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.place = os.path.join(base, name)
        os.makedirs(self.place)
        os.chmod(self.place, 0o755)  # noqa: S103
        self.state = os.path.join(self.place, "state")
        os.makedirs(self.state)
        os.chmod(self.state, 0o755)  # noqa: S103
        self._inside = os.path.join(base, "here")
        os.makedirs(self._inside, exist_ok=True)
        self._shared = os.path.join(base, "shared")
        os.makedirs(self._shared, exist_ok=True)
        os.chmod(self._shared, 0o755)  # noqa: S103
        self.libvirt = PrivateLibvirt(self.place, name)
        self.libvirt.start()
        self.run("mount", "--bind", self.state, self._inside)
        self._socket = os.path.join(self.place, "driver.sock")
        self._process: subprocess.Popen[bytes] | None = None
        self.driver = RemoteDriver(self._socket)

    def run(self, *command: str) -> str:
        return self.libvirt.run(*command)

    @property
    def pid(self) -> int:
        return int(self.libvirt.inside()[2])

    def start_driver(self, shared: bool = False, **libvirt: Any) -> None:
        """Start the driver process. ``shared``: both hosts use the same instances_path."""
        self.stop_driver()
        default: dict[str, Any] = {"state_path": self._inside, "my_ip": self.address, "host": self.name}
        if shared:
            default["instances_path"] = self._shared
        # Serial ports are TCP ports and screens are enabled, so that migrations must map both to the destination.
        options = {"": default, "serial_console": {"enabled": True}, "vnc": {"enabled": True},
                   "spice": {"enabled": True},
                   "libvirt": {"virt_type": "qemu", "connection_uri": self.libvirt.uri, **libvirt}}
        self._process = subprocess.Popen(
            self.libvirt.inside(sys.executable, "-m", "tests.integration.libvirt.driver_host", self._socket, self.name,
                                json.dumps(options)),
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
            stderr=open(os.path.join(self.place, "driver.log"), "ab"))  # noqa: SIM115
        wait_for(lambda: os.path.exists(self._socket), 60, f"the driver of {self.name} starts")

    def stop_driver(self) -> None:
        """Kill the driver process as a crash of nova-compute would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)

    def files(self, shared: bool = False) -> set[str]:
        """Return the files in instances_path."""
        place = self._shared if shared else os.path.join(self.state, "instances")
        return set(os.listdir(place)) if os.path.isdir(place) else set()

    def processes(self, program: str) -> list[int]:
        """Return the PIDs of the program's processes on this host."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if (pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == program[:15]
                        and os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{self.pid}/ns/net")):
                    found.append(pid)
        return found

    def clear(self) -> None:
        """Remove leftovers of earlier tests."""
        for name in self.run("virsh", "-c", self.libvirt.uri, "list", "--all", "--name").split():
            for command in (["destroy", name], ["undefine", name, "--nvram", "--managed-save"]):
                with contextlib.suppress(subprocess.CalledProcessError):
                    self.run("virsh", "-c", self.libvirt.uri, *command)
        for pid in self.processes("qemu-storage-daemon"):
            os.kill(pid, 15)
        for place in (self.state, self._shared):
            for entry in os.scandir(place):
                if entry.is_dir():
                    shutil.rmtree(entry.path)

    def stop(self) -> None:
        self.stop_driver()
        self.clear()
        self.libvirt.stop()


def _cable(one: LabHost, two: LabHost) -> None:
    """Connect the two hosts with a pair of veth devices."""
    subprocess.run(["ip", "link", "add", "lab0", "netns", str(one.pid), "type", "veth", "peer", "name", "lab0", "netns",
                    str(two.pid)], check=True, timeout=30)
    for host, other in ((one, two), (two, one)):
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "lab0")
        host.run("ip", "link", "set", "lab0", "up")
        names = pathlib.Path(host.place, "hosts")
        names.write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n{other.address} {other.name}\n")
        host.run("mount", "--bind", str(names), "/etc/hosts")


@pytest.fixture(name="lab_hosts", scope="session")
def lab_hosts_fixture() -> Iterator[tuple[LabHost, LabHost]]:
    base = tempfile.mkdtemp(prefix="nova-hosts.", dir="/var/tmp")
    os.chmod(base, 0o755)  # noqa: S103
    made: list[LabHost] = []
    try:
        made.extend(LabHost(base, f"lab{number}", f"10.78.0.{number}") for number in (1, 2))
        _cable(made[0], made[1])
        yield made[0], made[1]
    finally:
        for host in made:
            host.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(name="hosts")
def hosts_fixture(lab_hosts: tuple[LabHost, LabHost]) -> Iterator[tuple[LabHost, LabHost]]:
    """Start both hosts, with drivers on separate disks."""
    for host in lab_hosts:
        host.clear()
        host.start_driver()
    yield lab_hosts
    for host in lab_hosts:
        host.stop_driver()
        host.clear()


def boot(host: LabHost, instance: Instance, image: pathlib.Path, script: str = NOTE) -> BootFiles:
    """Start a guest from an image in the host's cache, with a script that runs at its first boot."""
    instance.user_data = script
    drive = os.path.join(host.place, "drive.iso")
    import base64

    instance.user_data = base64.b64encode(script.encode()).decode()
    config_drive.build(instance, drive, MetadataSettings())
    plain = kernel_disks(image)
    root = host.driver.cache_image(plain.root, "i.raw")
    disks = BootFiles(root=root, root_format="raw", kernel=plain.kernel, ramdisk=plain.ramdisk, config_drive=drive)
    host.driver.disks.prepare(instance, disks)
    host.driver.guests.spawn(instance, disks)
    return disks


def console(host: LabHost, instance: Instance) -> bytes:
    with contextlib.suppress(Exception):
        return bytes(host.driver.consoles.output(instance))
    return b""


def wait_for_text(host: LabHost, instance: Instance, text: bytes, seconds: float = 180) -> bytes:
    def look() -> bytes:
        log = console(host, instance)
        return log if text in log else b""

    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{text!r} is not on the console: ...{console(host, instance)[-600:]!r}"
        time.sleep(0.5)
    return found
