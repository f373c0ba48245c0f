"""Real compute hosts (see tools/hosts) for tests, with a libvirtd each, removed completely at the end.

From a host only the broker is reachable, at the address of the switch.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration import emulator
from tests.integration.cluster import Options, Place
from tests.integration.port_relay import PortRelay
from tests.integration.processes import Process, eventually
from tests.integration.rabbit import Rabbit
from tools.hosts import Host, HostError, Site
from tools.hosts.site import sweep

TOOLS = ("libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "qemu-img", "ip", "nft", "nsenter", "dnsmasq")
_missing = [tool for tool in TOOLS if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or bool(_missing),
    reason=f"hosts need root and {', '.join(_missing)}" if _missing else "hosts are namespaces, which need root")
# Seconds until a host has booted and its libvirtd answers, on a loaded machine.
_BOOT = 60.0


class RealHost:
    """A host and its daemons. ``host`` runs commands and controls power and cable."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name
        logs = host.directory
        self._power = Process("power", host.power_command(), logs / "power.log")
        path = emulator.search_path(logs / "emulator")
        self._daemons = {name: Process(name, command, logs / f"{name}.log", env={"PATH": path})
                         for name, command in host.libvirt_commands().items()}

    def power_on(self) -> None:
        """Switch the host on and wait until its libvirtd answers."""
        self._power.start()
        eventually(self._booted, _BOOT, f"{self.name} boots\n{self._power.tail()}")
        for daemon in self._daemons.values():
            daemon.start()
        eventually(self._answers, _BOOT, f"libvirtd of {self.name} answers\n{self.libvirt_log()}")

    def power_off(self) -> None:
        """Simulate a loss of power: kill every process on the host and keep its disk."""
        self.host.power_off()
        for process in (self._power, *self._daemons.values()):
            process.kill()

    def kill_libvirtd(self) -> None:
        """Kill libvirtd as a crash would; guests continue to run."""
        self._daemons["libvirtd"].kill()

    def start_libvirtd(self) -> None:
        self._daemons["libvirtd"].start()
        eventually(self._answers, _BOOT, f"libvirtd of {self.name} answers")

    def virsh(self, *arguments: str, **more: Any) -> str:
        return self.host.run(["virsh", "-q", "-c", "qemu:///system", *arguments], **more)

    def domains(self) -> list[str]:
        """Return the names of all libvirt domains in any state."""
        return self.virsh("list", "--all", "--name").split()

    def leftovers(self, instances: pathlib.Path | None) -> list[str]:
        """Return leftovers of deleted guests. ``instances`` is the path on the host, or None if shared with other
        hosts."""
        files = [] if instances is None else self.host.run([
            "find", str(instances), "-mindepth", "1", "-maxdepth", "1", "-type", "d", "-not", "-name", "[_.]*"],
            check=False).split()
        return [
            *(f"domain {name}" for name in self.domains()),
            *(f"device {name}" for name in self._devices()),
            *(f"namespace {line}" for line in self.host.run(["ip", "netns", "list"]).splitlines()),
            *(f"packet filter {line}" for line in self.host.run(["nft", "list", "tables"]).splitlines()),
            *(f"process {name}" for name in self.host.processes().values() if name in ("dnsmasq", "qemu-system-x86")),
            *(f"file {path}" for path in files)]

    def clear(self, instances: pathlib.Path) -> None:
        """Clean the host for another cloud. Leftovers of a failed test are destroyed with their guests and disks."""
        disk = self.host.directory / "disk"
        if self.host.pid is None or self.leftovers(instances):
            self.power_off()
            for place in ("etc/libvirt/qemu", "var/lib/libvirt"):
                shutil.rmtree(disk / place, ignore_errors=True)
            self.host.prepare()
            self.power_on()
        _empty(disk / "state")

    def libvirt_log(self) -> str:
        path = self.host.directory / "disk/var/log/libvirt/libvirtd.log"
        return path.read_text()[-2000:] if path.exists() else ""

    def _booted(self) -> bool:
        assert self._power.running(), f"{self.name} does not boot:\n{self._power.tail()}"
        return self.host.pid is not None

    def _answers(self) -> bool:
        try:
            return bool(self.virsh("uri"))
        except HostError:
            return False

    def _devices(self) -> list[str]:
        names = os.listdir(f"/proc/{self.host.pid}/root/sys/class/net")
        return [name for name in names if name not in ("lo", "mgmt0")]


class RealHosts:
    """``count`` running hosts named nova-host1 and so on. ``own`` is the path of a further private directory."""

    def __init__(self, count: int, own: str = "") -> None:
        troubles = sweep()
        assert not troubles, f"cannot remove leftovers of an earlier run: {troubles}"
        self.site = Site.temporary()
        self._relays: dict[int, PortRelay] = {}
        self._switch = Process("switch", self.site.switch.power_command(), self.site.directory / "switch.log")
        try:
            self._switch.start()
            eventually(self.site.switch.usable, _BOOT, f"the switch has started\n{self._switch.tail()}")
            self.hosts = [self._add(number + 1, own) for number in range(count)]
            for host in self.hosts:
                host.power_on()
        except BaseException:
            self.close()
            raise

    def _add(self, number: int, own: str) -> RealHost:
        disk = self.site.directory / f"host-{number}/disk"
        binds = [(str(disk / "state"), str(self.site.state)), *([(str(disk / "own"), own)] if own else [])]
        return RealHost(self.site.add(number, f"nova-host{number}", binds=binds))

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()
        self.site.remove()

    def options(self) -> Options:
        """Return options of nova.conf for services that run outside the hosts."""
        return {
            "DEFAULT": {"compute_driver": "libvirt", "reserved_host_memory_mb": 0, "shutdown_timeout": 20},
            "libvirt": {"virt_type": "qemu"},
            "network": {"driver": "linuxnet", "nat": False},
            "image": {"directory": self.site.directory / "images"},
        }

    def places(self, rabbit: Rabbit, transport_url: str, instances: pathlib.Path | None = None) -> list[Place]:
        """Return the places for a :class:`Cluster` with this ``transport_url``, and connect the hosts to its broker.
        Each host has its own state_path; ``instances`` is the instances_path, for example a shared one."""
        if rabbit.port not in self._relays:
            self._relays[rabbit.port] = PortRelay(self.site.switch.netns, self.site.switch.address, rabbit.port)
        url = transport_url.replace("127.0.0.1", self.site.switch.address)
        return [Place(host.name, host.host.command(), {"DEFAULT": {
            "transport_url": url, "state_path": self.site.state, "my_ip": host.host.address,
            "instances_path": instances or self.site.state / "instances"}}) for host in self.hosts]

    def clear(self, instances: pathlib.Path) -> None:
        """Clean all hosts and their shared directories."""
        for host in self.hosts:
            host.clear(instances)
        _empty(self.site.shared)


def _empty(directory: pathlib.Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def real_hosts(count: int, own: str = "") -> Iterator[RealHosts]:
    made = RealHosts(count, own)
    try:
        yield made
    finally:
        made.close()
