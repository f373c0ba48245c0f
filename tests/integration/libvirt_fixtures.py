"""A private libvirtd, and small guests for it.

The daemon runs in its own mount and network namespaces with empty state directories. It is therefore independent of
other libvirtds of the machine, may be killed at any moment, and has its own bridges.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova.conf import CONF, register
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from tests.integration import emulator
from tests.paths import ROOT
from tests.polling import poll

_TOOLS = ("libvirtd", "virtlogd", "qemu-system-x86_64", "qemu-img", "unshare", "nsenter", "ip")
os.environ["PATH"] += ":/usr/sbin:/sbin"

needs_libvirt = pytest.mark.skipif(os.geteuid() != 0 or not all(shutil.which(tool) for tool in _TOOLS),
                                   reason="needs root, libvirtd, virtlogd and QEMU")

_SETUP = """
set -e
mount --make-rprivate /
for place in /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /etc/libvirt; do
    mkdir -p $place
    mount -t tmpfs -o mode=755 tmpfs $place
done
ip link set lo up
{more}
exec virtlogd -f {place}/virtlogd.conf -p {place}/virtlogd.pid
"""


_FOR_MACHINES = """
# A /dev without kvm: guests are emulated here, whatever the machine has. And where only root may open /dev/kvm,
# libvirtd finds KVM when it probes QEMU, not for QEMU's own user, and probes anew for every guest, for seconds.
# The mounts below /dev move along: of two on one another libvirt would take the wrong one.
if [ -e /dev/kvm ]; then
    mkdir $PLACE/dev
    mount --move /dev $PLACE/dev
    mount -t tmpfs -o mode=755 tmpfs /dev
    for device in $PLACE/dev/*; do
        name=/dev/${device##*/}
        if mountpoint -q $device; then
            mkdir $name
            mount --move $device $name
        elif [ $name != /dev/kvm ]; then
            cp -a $device $name
        fi
    done
    umount -l $PLACE/dev
fi
"""

# Controllers of one version of cgroups only. All of /dev stays: it gets loop devices later.
_FOR_CONTAINERS = """
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
"""

_AS_MACHINE = """
host_uuid = "{uuid}"
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
"""


def wait_for(what: Callable[[], Any], seconds: float, reason: str) -> Any:
    """Return the first true value of ``what()`` within ``seconds``."""
    value = poll(what, seconds)
    assert value, f"not within {seconds} s: {reason}"
    return value


class PrivateLibvirt:
    """A libvirtd with its virtlogd. ``place`` is a directory that is accessible for the guests' user.

    ``name``: the host name in the daemon's namespaces; libvirtd then also listens on TCP and acts as another machine.
    ``driver``: qemu or lxc.
    """

    def __init__(self, place: str, name: str = "", driver: str = "qemu") -> None:
        self.place = place
        self.name = name
        self.driver = driver
        self.uri = f"{driver}+unix:///system?socket={place}/libvirt-sock"
        self._logd: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # small log files, so that every test reads several
        pathlib.Path(self.place, "virtlogd.conf").write_text("max_size = 8192\nmax_backups = 32\n", encoding="ascii")
        # virtlogd writes the guests' logs and must outlive every libvirtd
        more = _FOR_CONTAINERS if self.driver == "lxc" else f"PLACE={self.place}\n{_FOR_MACHINES}"
        setup = _SETUP.format(place=self.place, more=more)
        if self.name:
            setup = f"hostname {self.name}\n{setup}"
        self._logd = subprocess.Popen(["unshare", "--mount", "--net", "--uts", "sh", "-c", setup],
                                      stdin=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(f"{self.place}/virtlogd.pid"), 60, "virtlogd starts")
        pathlib.Path(self.place, "libvirtd.conf").write_text(
            f'unix_sock_dir = "{self.place}"\nauth_unix_rw = "none"\n'
            f'log_outputs = "2:file:{self.place}/libvirtd.log"\n'
            + (_AS_MACHINE.format(uuid=uuid.uuid4()) if self.name else ""), encoding="ascii")
        self.start_daemon()

    def inside(self, *command: str) -> list[str]:
        """Return a command line that runs in the daemon's namespaces."""
        assert self._logd is not None
        return ["nsenter", "-t", str(self._logd.pid), "--mount", "--net", "--uts", *command]

    def run(self, *command: str) -> str:
        return subprocess.run(self.inside(*command), check=True, capture_output=True, text=True, timeout=30).stdout

    def start_daemon(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.place}/libvirt-sock")
        self._daemon = subprocess.Popen(
            self.inside("libvirtd", "-f", f"{self.place}/libvirtd.conf", "-p", f"{self.place}/libvirtd.pid",
                        *(["--listen"] if self.name else [])),
            env={**os.environ, "PATH": emulator.search_path(pathlib.Path(self.place, "emulator"))},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(f"{self.place}/libvirt-sock"), 60, "libvirtd starts")

    def kill_daemon(self) -> None:
        """Kill libvirtd; guests continue to run."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGKILL)
        self._daemon.wait(timeout=10)

    def signal_daemon(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            for name in self.run("virsh", "-c", self.uri, "list", "--name").split():
                self.run("virsh", "-c", self.uri, "destroy", name)
        for process in (self._daemon, self._logd):
            if process is not None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)


@pytest.fixture(name="libvirt_daemon", scope="session")
def libvirt_daemon_fixture() -> Iterator[PrivateLibvirt]:
    # not pytest's directory, which only root may enter
    place = tempfile.mkdtemp(prefix="nova-libvirt.", dir="/var/tmp")
    os.chmod(place, 0o755)  # noqa: S103
    daemon = PrivateLibvirt(place)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(name="guest_image", scope="session")
def guest_image_fixture() -> pathlib.Path:
    """Return a directory with vmlinuz, initrd.gz, rootfs.img, nova-guest.qcow2 and small-guest.

    The directory is NOVA_GUEST_IMAGE, if set. Otherwise the image is built once per version of its sources, in a place
    that guests (user libvirt-qemu) may read.
    """
    sources = ROOT / "tools/guest-image"
    version = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources.rglob("*")) if path.is_file()))
    given = os.environ.get("NOVA_GUEST_IMAGE")
    place = pathlib.Path(given or f"/var/tmp/nova-guest-image-{version.hexdigest()[:12]}")
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o755)
    with open(place / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "nova-guest.qcow2").exists():
            subprocess.run([str(ROOT / "tools/guest-image/build.sh"), str(place)], check=True, timeout=600)
        _assemble_small_guest(place)
    return place


def _assemble_small_guest(place: pathlib.Path) -> None:
    """Replace the small guest, which guests of other test processes may be starting from."""
    source, program = ROOT / "tests/data/small_guest.s", place / "small-guest"
    subprocess.run(["as", "--32", "-o", f"{program}.o", str(source)], check=True, timeout=60)
    subprocess.run(["objcopy", "-O", "binary", f"{program}.o", f"{program}.new"], check=True, timeout=60)
    os.replace(f"{program}.new", program)


@pytest.fixture(name="state")
def state_fixture(libvirt_daemon: PrivateLibvirt) -> Iterator[pathlib.Path]:
    """Set a private state_path in the configuration and return it."""
    register(CONF)
    place = pathlib.Path(tempfile.mkdtemp(prefix="state.", dir=libvirt_daemon.place))
    place.chmod(0o755)
    CONF.set_override("state_path", str(place))
    CONF.set_override("virt_type", "qemu", "libvirt")
    CONF.set_override("connection_uri", libvirt_daemon.uri, "libvirt")
    yield place
    CONF.clear_override("state_path")
    CONF.clear_override("virt_type", "libvirt")
    CONF.clear_override("connection_uri", "libvirt")


@pytest.fixture(name="events")
def events_fixture() -> list[GuestStatus]:
    """Return the events reported by the driver."""
    return []


@pytest.fixture(name="driver")
def driver_fixture(state: pathlib.Path, events: list[GuestStatus]) -> Iterator[Any]:
    """Start a driver, and remove the remaining guests after the test."""
    from nova.virt.libvirt.driver import LibvirtDriver

    driver = LibvirtDriver(f"test-{uuid.uuid4().hex[:8]}")
    driver.start(events.append)
    try:
        yield driver
    finally:
        for guest in driver.guests.all():
            driver.guests.remove_orphan(guest.uuid)
        driver.stop()


# Arguments with which the kernel starts faster without KVM, as on the bootable disk of tools/guest-image.
_FAST_START = {"os_command_line": "nokaslr mitigations=off noreplace-smp cryptomgr.notests"}


def server(properties: dict[str, str] | None = None, specs: dict[str, str] | None = None, *,
           disk_format: str = "qcow2", **fields: Any) -> Instance:
    """Return a small server with a unique identity. ``flavor`` overrides sizes."""
    identity = uuid.uuid4()
    sizes = {"memory_mb": 128, "vcpus": 1, "root_gb": 1, **fields.pop("flavor", {})}
    return Instance(**{
        "id": identity.int & 0x7fffffff, "uuid": str(identity), "project_id": "p", "user_id": "u",
        "display_name": "test", "hostname": "test", "created_at": utcnow(), "image_ref": "i",
        "flavor": Flavor(flavorid="1", name="m1.nano", extra_specs=specs or {}, **sizes),
        "image": Image(id="i", disk_format=disk_format, properties={**_FAST_START, **(properties or {})}), **fields})


def kernel_disks(image: pathlib.Path) -> BootFiles:
    """Return the disks of a guest booted from kernel, ramdisk and machine image."""
    return BootFiles(root=str(image / "rootfs.img"), root_format="raw", kernel=str(image / "vmlinuz"),
                 ramdisk=str(image / "boot.gz"))


def small_disks(image: pathlib.Path) -> BootFiles:
    """Return the disks of a guest that only prints "login: " and obeys the power button (tests/data/small_guest.s).

    It takes a thirtieth of the CPU time of Linux. Devices that are attached while it runs are not noticed inside.
    """
    return dataclasses.replace(kernel_disks(image), kernel=str(image / "small-guest"))


def wait_for_console(driver: Any, instance: Instance, text: bytes, count: int = 1, seconds: float = 120) -> bytes:
    """Wait until the console log contains ``text`` ``count`` times, and return the log."""
    def look() -> bytes | None:
        with contextlib.suppress(Exception):
            log = driver.consoles.output(instance)
            return log if log.count(text) >= count else None
        return None

    return wait_for(look, seconds, f"{text!r} {count} times on the console of {instance.uuid}")
