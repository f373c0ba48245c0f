"""The DHCP and DNS server of one network: a dnsmasq in the network's namespace.

It outlives nova-compute. Its files live below /run, as long as the namespaces do. New reservations
are files that it notices by itself; removed ones need a SIGHUP.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Sequence

from nova import exception
from nova.conf import CONF
from nova.network import commands, netns
from nova.network.filters import METADATA
from nova.network.records import Guest, HostNet
from nova.objects.network import Reservation

LOG = logging.getLogger(__name__)

RUN = "/run"
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class DhcpServer:
    """``tag`` tells state paths apart that share a machine."""

    def __init__(self, net: HostNet, tag: str) -> None:
        self.net = net
        self.folder = os.path.join(RUN, f"nova-{tag}", net.id)
        self.hosts = os.path.join(self.folder, "hosts")
        self._conf = os.path.join(self.folder, "dnsmasq.conf")
        self._pid = os.path.join(self.folder, "dnsmasq.pid")

    def ensure(self) -> None:
        """Running, with the configuration of now."""
        wanted = self.configuration()
        if self.pid() is not None and _read(self._conf) == wanted:
            return
        self.stop()
        # dnsmasq gives up root: it must be able to read these, and there is nothing secret in them.
        os.makedirs(self.hosts, mode=0o755, exist_ok=True)
        for folder in (os.path.dirname(self.folder), self.folder, self.hosts):
            os.chmod(folder, 0o755)  # noqa: S103
        _write(self._conf, wanted)
        program = shutil.which(CONF.network.dnsmasq, path=os.environ.get("PATH", "") + commands.SBIN)
        if program is None:
            raise exception.NetworkSetupError(reason=f"there is no {CONF.network.dnsmasq}")
        netns.call(self.net.namespace, lambda: commands.run([program, f"--conf-file={self._conf}"]))
        LOG.info("DHCP server of network %s is running", self.net.id)

    def stop(self) -> None:
        """Not running any more; its files stay."""
        pid = self.pid()
        if pid is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if self.pid() is None:
                    return
                time.sleep(0.01)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.folder))

    def pid(self) -> int | None:
        """The process, if it lives and is really ours."""
        try:
            pid = int(_read(self._pid) or "")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except (OSError, ValueError):
            return None
        return pid if self._conf.encode() in command else None

    # --- reservations ---------------------------------------------------------------------------
    def reserve(self, guest: Guest) -> None:
        """Hand out the addresses of a guest from now on."""
        lines = [host_line(Reservation(mac=vif.mac, address=vif.address, hostname=guest.hostname))
                 for vif in guest.vifs]
        path = os.path.join(self.hosts, guest.uuid)
        text = "".join(lines)
        if _read(path) != text:
            _write(path, text)

    def keep_only(self, uuids: Sequence[str]) -> None:
        """Remove the reservations of all other guests."""
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self.hosts)) - set(uuids):
                os.unlink(os.path.join(self.hosts, name))

    def release(self, guest: Guest) -> None:
        """Forget the addresses of a guest, so that the next owner can have them at once."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.hosts, guest.uuid))
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGHUP)
        try:
            netns.call(self.net.namespace, lambda: _release(self.net.gateway, guest))
        except OSError as error:
            LOG.warning("Leases of %s on network %s could not be released: %s", guest.uuid, self.net.id, error)

    def configuration(self) -> str:
        net = self.net
        network = ipaddress.IPv4Network(net.cidr)
        dns = ",".join(net.dns) or net.gateway
        domain = CONF.network.dhcp_domain
        lines = [
            f"pid-file={self._pid}",
            f"dhcp-leasefile={os.path.join(self.folder, 'leases')}",
            "interface=gw", "except-interface=lo", "bind-interfaces",
            "no-hosts", "no-resolv", "no-ping", "dhcp-authoritative", "strict-order", "domain-needed", "bogus-priv",
            f"dhcp-range={network.network_address},static,{network.netmask},{CONF.network.dhcp_lease_time}s",
            f"dhcp-lease-max={network.num_addresses}",
            f"dhcp-hostsdir={self.hosts}",
            f"dhcp-option-force=option:mtu,{net.mtu}",
            f"dhcp-option=option:router,{net.gateway}",
            f"dhcp-option=option:dns-server,{dns}",
            # Clients that take classless routes ignore the router option.
            f"dhcp-option=option:classless-static-route,{METADATA}/32,{net.gateway},0.0.0.0/0,{net.gateway}",
            f"dhcp-option=249,{METADATA}/32,{net.gateway},0.0.0.0/0,{net.gateway}",
            *(f"server={address}" for address in upstream(net.dns)),
        ]
        if domain:
            lines += [f"domain={domain}", f"local=/{domain}/"]
        return "\n".join(lines) + "\n"


def host_line(reservation: Reservation) -> str:
    """One line of dnsmasq's dhcp-host. Names that are no DNS labels are left out: users choose them."""
    label = reservation.hostname.split(".")[0]
    address = str(ipaddress.IPv4Address(reservation.address))
    name = f",{label}" if _LABEL.fullmatch(label) else ""
    return f"{reservation.mac.lower()},{address}{name}\n"


def upstream(dns: Sequence[str], resolv_conf: str = "/etc/resolv.conf") -> list[str]:
    """The servers that questions are passed on to: the network's own, or the host's (loopback cannot be reached)."""
    if dns:
        return list(dns)
    found = []
    for line in (_read(resolv_conf) or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                address = ipaddress.ip_address(words[1])
                if address.version == 4 and not address.is_loopback:
                    found.append(str(address))
    return found


def release_packet(server: str, mac: str, address: str) -> bytes:
    """A client's DHCPRELEASE (RFC 2131)."""
    hardware = bytes.fromhex(mac.replace(":", ""))
    packet = struct.pack("!BBBBIHH4s4s4s4s16s64s128s", 1, 1, len(hardware), 0, 0x4E6F7661, 0, 0,
                         socket.inet_aton(address), bytes(4), bytes(4), bytes(4), hardware, b"", b"")
    packet += b"\x63\x82\x53\x63" + b"\x35\x01\x07" + b"\x36\x04" + socket.inet_aton(server) + b"\xff"
    return packet.ljust(300, b"\0")


def _release(server: str, guest: Guest) -> None:
    """In the server's namespace: say that the guest needs its addresses no more."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # The server must see it come from the network's own interface.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"gw\0")
        for vif in guest.vifs:
            sender.sendto(release_packet(server, vif.mac, vif.address), (server, 67))


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: str, text: str) -> None:
    """Replace a file in one go, readable by all. Hidden names are ignored by dnsmasq."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
