"""A room for one real compute host: namespaces with a libvirtd of their own, where only the broker can be reached.

nova-compute and nova-metadata run in there; the bridges, taps, packet filters and guests they make meet nothing else
of the machine and are gone with the room.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import threading

from nova.network import netns
from tests.integration.libvirt_fixtures import PrivateLibvirt

# libvirtd has a file system of its own already; sysfs and the names of namespaces are those of the machine.
_FURNISH = """
set -e
mkdir -p {place}/sys /run/netns
mount -t sysfs sysfs {place}/sys
mount --rbind /sys/fs/cgroup {place}/sys/fs/cgroup 2>/dev/null || true
mount --rbind {place}/sys /sys
mount -t tmpfs tmpfs /run/netns
"""


class ComputeRoom:
    """``daemon`` runs; ``port`` is the broker's, on the loopback interface outside and from now on inside as well."""

    def __init__(self, daemon: PrivateLibvirt, port: int) -> None:
        self.daemon = daemon
        daemon.run("sh", "-c", _FURNISH.format(place=daemon.place))
        self._space = f"/proc/{daemon.inside()[2]}/ns/net"
        self._listener = netns.call(self._space, lambda: socket.create_server(("127.0.0.1", port)))
        threading.Thread(target=_relay, args=(self._listener, port), name="relay", daemon=True).start()

    @property
    def prefix(self) -> list[str]:
        """What a command begins with to run in here."""
        return self.daemon.inside()

    def close(self) -> None:
        """Nothing in here reaches the broker any more."""
        self._listener.close()

    def clear(self) -> None:
        """Remove what a failed test left here: guests, DHCP servers, devices, namespaces, packet filters."""
        for name in self.domains():
            self.daemon.run("virsh", "-c", self.daemon.uri, "destroy", name)
        for pid in self._processes("dnsmasq"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for device in self._devices():
            with contextlib.suppress(subprocess.CalledProcessError):  # the other end of a pair went with the first
                self.daemon.run("ip", "link", "delete", device)
        for name in self.daemon.run("ip", "netns", "list").split():
            self.daemon.run("ip", "netns", "delete", name)
        self.daemon.run("nft", "flush", "ruleset")

    def domains(self) -> list[str]:
        """The names of the guests that libvirt knows, whatever their state."""
        return self.daemon.run("virsh", "-c", self.daemon.uri, "list", "--all", "--name").split()

    def leftovers(self, instances: pathlib.Path) -> list[str]:
        """Everything that guests need and that should be gone with the last one."""
        return [
            *(f"domain {name}" for name in self.domains()),
            *(f"device {name}" for name in self._devices()),
            *(f"namespace {name}" for name in self.daemon.run("ip", "netns", "list").split()),
            *(f"packet filter {line}" for line in self.daemon.run("nft", "list", "tables").splitlines()),
            *(f"process dnsmasq {pid}" for pid in self._processes("dnsmasq")),
            *(f"process qemu {pid}" for pid in self._processes("qemu-system-x86")),
            *(f"file {path.name}" for path in instances.iterdir() if path.is_dir() and path.name[0] not in "_.")]

    def _devices(self) -> list[str]:
        lines = self.daemon.run("ip", "-o", "link").splitlines()
        names = [line.split(":")[1].strip().partition("@")[0] for line in lines]
        return [name for name in names if name != "lo"]

    def _processes(self, name: str) -> list[int]:
        """The processes of this room with this name."""
        here = os.readlink(f"/proc/{self.daemon.inside()[2]}/ns/mnt")
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns" / "mnt") == here and (process / "comm").read_text().strip() == name:
                    found.append(int(process.name))
        return found


def _relay(listener: socket.socket, port: int) -> None:
    """Connect whoever connects to ``listener`` to the port outside, until the listener is closed."""
    while True:
        try:
            inner, _address = listener.accept()
        except OSError:
            return
        try:
            outer = socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            inner.close()
            continue
        outer.settimeout(None)
        for source, sink in ((inner, outer), (outer, inner)):
            threading.Thread(target=_pump, args=(source, sink), name="relay", daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    # The other direction ends with this one: a broken connection must not look whole from the other side.
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
