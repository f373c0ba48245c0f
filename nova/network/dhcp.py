"""The DHCP and DNS server of one network, and its router advertisements: a dnsmasq in the network's namespace.

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
import tempfile
import time
from collections.abc import Sequence

from nova import exception
from nova.conf import CONF
from nova.network import commands, dhcp_release, netns
from nova.network.filters import METADATA
from nova.network.records import Guest, HostNet
from nova.objects import plain_ip
from nova.objects.network import DHCPV6, VIF

LOG = logging.getLogger(__name__)

RUN = "/run"
# How often the file of leases is read until it is whole.
_READS = 10
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def names_file(tag: str) -> str:
    """The file of the names of floating addresses."""
    return os.path.join(RUN, f"nova-{tag}", "floating-names")


class DhcpServer:
    """``tag`` tells state paths apart that share a machine."""

    def __init__(self, net: HostNet, tag: str) -> None:
        self.net = net
        self.folder = os.path.join(RUN, f"nova-{tag}", net.id)
        self.hosts = os.path.join(self.folder, "hosts")
        # Those of floating addresses, of all networks of the host (nova.network.names).
        self.names = names_file(tag)
        # Of each name in the DNS the guest that had it first, also after a reboot.
        self._owners = os.path.join(CONF.state_path, "networks", net.id, "names")
        self._conf = os.path.join(self.folder, "dnsmasq.conf")
        self._pid = os.path.join(self.folder, "dnsmasq.pid")
        self._leases = os.path.join(self.folder, "leases")

    def ensure(self) -> None:
        """Running, with the configuration of now."""
        wanted = self.configuration()
        if self.pid() is not None and read(self._conf) == wanted:
            return
        self.stop()
        # dnsmasq gives up root: it must be able to read these, and there is nothing secret in them.
        for folder in (os.path.dirname(self.folder), self.folder, self.hosts):
            os.makedirs(folder, mode=0o755, exist_ok=True)
            os.chmod(folder, 0o755)  # noqa: S103
        write(self._conf, wanted)
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
            pid = int(read(self._pid) or "")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except (OSError, ValueError):
            return None
        return pid if self._conf.encode() in command else None

    # --- reservations ---------------------------------------------------------------------------
    def reserve(self, guest: Guest) -> None:
        """Hand out the addresses of a guest from now on, and its name, if no other guest of the network has it."""
        label = label_of(guest.hostname)
        path = os.path.join(self.hosts, guest.uuid)
        before = read(path)
        if before is not None and not _is_named(before, label):
            self._give_back(guest.uuid)
        ours = label is not None and label.lower() not in _reserved() and self._claim(label, guest.uuid)
        text = "".join(host_line(vif, label if ours else None) for vif in guest.vifs)
        if before != text:
            write(path, text)
        if before not in (None, text):
            # It reads what a changed file says, and still knows what the file said before.
            self.reread()

    def reread(self) -> None:
        """What is in its files counts from now on."""
        if (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGHUP)

    def _claim(self, label: str, uuid: str) -> bool:
        """Whether the name is this guest's from now on."""
        os.makedirs(self._owners, mode=0o755, exist_ok=True)
        path = os.path.join(self._owners, label.lower())
        owner = read(path)
        if owner is None:
            write(path, uuid)
        return owner in (None, uuid)

    def _give_back(self, *uuids: str) -> None:
        """The names of these guests are free again."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._owners):
                path = os.path.join(self._owners, name)
                if read(path) in uuids:
                    _remove(path)

    def keep_only(self, uuids: Sequence[str]) -> None:
        """Remove the reservations of all other guests."""
        gone: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            gone = set(os.listdir(self.hosts)) - set(uuids)
        for uuid in gone:
            _remove(os.path.join(self.hosts, uuid))
        self._give_back(*gone)

    def release(self, guest: Guest, vifs: Sequence[VIF]) -> None:
        """Forget the addresses of these interfaces, so that the next owner can have them at once.

        ``guest`` has those that stay.
        """
        if guest.vifs:
            self.reserve(guest)
        else:
            _remove(os.path.join(self.hosts, guest.uuid))
            self._give_back(guest.uuid)
        pid = self.pid()
        if pid is None:
            return
        leases = self._leases_v6(vifs) if self.net.ipv6_mode == DHCPV6 else None
        os.kill(pid, signal.SIGHUP)
        try:
            netns.call(self.net.namespace, lambda: self._release(vifs, leases))
        except OSError as error:
            LOG.warning("Leases of %s on network %s could not be released: %s", guest.uuid, self.net.id, error)

    def _release(self, vifs: Sequence[VIF], leases: tuple[bytes, list[dhcp_release.Lease6]] | None) -> None:
        """In the server's namespace: say that the guest needs these no more."""
        dhcp_release.send(self.net.gateway, [(vif.mac, address) for vif in vifs for address in vif.addresses(4)])
        if leases:
            dhcp_release.send_v6(*leases)

    def _leases_v6(self, vifs: Sequence[VIF]) -> tuple[bytes, list[dhcp_release.Lease6]] | None:
        """The server's identifier and the IPv6 leases of these; None if it never gave any."""
        addresses = [each for vif in vifs for each in vif.addresses(6)]
        before = None
        # dnsmasq empties the file and writes it again at every change, also at SIGHUP: only what stays is whole.
        for _attempt in range(_READS):
            text = read(self._leases) or ""
            server, leases = dhcp_release.leases_v6(text, addresses)
            if server is not None and text == before:
                return server, leases
            before = text
            time.sleep(0.01)
        return None

    def configuration(self) -> str:
        net = self.net
        network = ipaddress.IPv4Network(net.cidr)
        dns = ",".join(of_version(net.dns, 4)) or net.gateway
        domain = CONF.network.dhcp_domain
        lines = [
            f"pid-file={self._pid}",
            f"dhcp-leasefile={self._leases}",
            "interface=gw", "except-interface=lo", "bind-interfaces",
            # Names are what the conductor says: no guest names itself.
            "dhcp-ignore-names",
            "no-hosts", "no-resolv", "no-ping", "dhcp-authoritative", "strict-order", "domain-needed", "bogus-priv",
            f"dhcp-range={network.network_address},static,{network.netmask},{CONF.network.dhcp_lease_time}s",
            f"dhcp-lease-max={network.num_addresses}",
            f"dhcp-hostsdir={self.hosts}",
            f"addn-hosts={self.names}",
            f"dhcp-option-force=option:mtu,{net.mtu}",
            f"dhcp-option=option:router,{net.gateway}",
            f"dhcp-option=option:dns-server,{dns}",
            # Clients that take classless routes ignore the router option.
            f"dhcp-option=option:classless-static-route,{METADATA}/32,{net.gateway},0.0.0.0/0,{net.gateway}",
            f"dhcp-option=249,{METADATA}/32,{net.gateway},0.0.0.0/0,{net.gateway}",
            *(f"server={address}" for address in upstream(net.dns)),
            *(self._configuration_v6() if net.cidr_v6 else []),
        ]
        if domain:
            lines += [f"domain={domain}", f"local=/{domain}/"]
        for name, address in (("gateway", net.gateway), ("metadata", METADATA)):
            names = f"{name},{name}.{domain}" if domain else name
            lines.append(f"host-record={names},{address}")
        return "\n".join(lines) + "\n"

    def _configuration_v6(self) -> list[str]:
        net = self.net
        network = plain_ip.v6_network(net.cidr_v6 or "")
        kind = "static" if net.ipv6_mode == DHCPV6 else "ra-only"
        dns = ",".join(f"[{address}]" for address in of_version(net.dns, 6) or [net.gateway_v6 or ""])
        return [
            "enable-ra",
            f"dhcp-range={network.network_address},{kind},{network.prefixlen},{CONF.network.dhcp_lease_time}s",
            # Nobody's default router: IPv6 ends in the namespace.
            f"ra-param=gw,mtu:{net.mtu},0,0",
            f"dhcp-option=option6:dns-server,{dns}",
        ]


def label_of(hostname: str) -> str | None:
    """The name of a guest in the DNS; users choose it, and what is no DNS label is none."""
    label = hostname.split(".")[0]
    return label if _LABEL.fullmatch(label) else None


def host_line(vif: VIF, label: str | None) -> str:
    """One line of dnsmasq's dhcp-host. ``label``: its name, if it has one."""
    addresses = "".join(f",{ipaddress.IPv4Address(address)}" for address in vif.addresses(4)[:1])
    addresses += "".join(f",[{fixed.address}]" for fixed in vif.fixed_ips if fixed.mode == DHCPV6)
    return f"{vif.mac.lower()}{addresses}{f',{label}' if label else ''}\n"


def _is_named(lines: str, label: str | None) -> bool:
    """Whether these lines of dhcp-host have this name, or none."""
    return all(line.rpartition(",")[2] == label or not _LABEL.fullmatch(line.rpartition(",")[2])
               for line in lines.splitlines())


def _reserved() -> set[str]:
    return {name.lower() for name in CONF.network.reserved_names}


def of_version(addresses: Sequence[str], version: int) -> list[str]:
    return [address for address in addresses if plain_ip.address(address).version == version]


def upstream(dns: Sequence[str], resolv_conf: str = "/etc/resolv.conf") -> list[str]:
    """The servers that questions are passed on to: the network's own, or the host's (loopback cannot be reached)."""
    if of_version(dns, 4):
        return of_version(dns, 4)
    found = []
    for line in (read(resolv_conf) or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                address = plain_ip.address(words[1])
                if address.version == 4 and not address.is_loopback:
                    found.append(str(address))
    return found


def read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write(path: str, text: str) -> None:
    """Replace a file in one go, readable by all. Hidden names are ignored by dnsmasq."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
