"""The DHCP and DNS server of a network, with router advertisements: a dnsmasq process in the network's namespace. DNS
records of floating addresses are in one hosts file that all processes read.

The process continues when nova-compute stops. Its files are below /run and so exist as long as the namespaces. dnsmasq
detects new reservation files by itself; changed or removed ones need a SIGHUP. The leases of removed interfaces are
released by messages (RFC 2131, RFC 8415) on behalf of the guest, so that dnsmasq can assign their addresses again."""

import binascii
import contextlib
import hashlib
import ipaddress
import logging
import os
import re
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from nova import exception
from nova.common import files, plain_ip
from nova.conf import CONF
from nova.network.linux import commands, netns, state_files
from nova.network.linux.filters import METADATA
from nova.network.linux.state_files import Guest, HostNet
from nova.objects.networks.network import DHCPV6, VIF, ServedDomain

LOG = logging.getLogger(__name__)

RUN = "/run"
# Maximum number of reads of the lease file until the file is complete.
_READS = 10
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
# Name of the interface in the namespace.
_DEVICE = "gw"
# Constants of DHCPv6: address of all servers, message type, and options.
_ALL_SERVERS = "ff02::1:2"
_RELEASE = 8
_CLIENT_ID, _SERVER_ID, _IA_NA, _IA_ADDRESS = 1, 2, 3, 5


class Lease6(NamedTuple):
    """An IPv6 lease in dnsmasq's lease file. Identifiers are raw bytes."""

    address: str
    iaid: int
    client: bytes


def names_file(tag: str) -> str:
    """Return the path of the hosts file with the names of floating addresses."""
    return os.path.join(RUN, f"nova-{tag}", "floating-names")


class DhcpServer:
    """The dnsmasq process of a network. ``tag``: the identifier of the state path, see ``state_files.tag``."""

    def __init__(self, net: HostNet, tag: str) -> None:
        self.net = net
        self.folder = os.path.join(RUN, f"nova-{tag}", net.id)
        self.hosts = os.path.join(self.folder, "hosts")
        # Names of floating addresses of all networks of the host (DnsRecords).
        self.names = names_file(tag)
        # DNS name -> uuid of the first guest with the name; persists across reboots.
        self._owners = os.path.join(CONF.state_path, "networks", net.id, "names")
        self._conf = os.path.join(self.folder, "dnsmasq.conf")
        self._pid = os.path.join(self.folder, "dnsmasq.pid")
        self._leases = os.path.join(self.folder, "leases")

    def ensure(self) -> None:
        """Start the server, or restart it if its configuration has changed. Raises NetworkSetupError."""
        wanted = self.configuration()
        if self.pid() is not None and read(self._conf) == wanted:
            return
        self.stop()
        # Readable by dnsmasq after it drops root privileges. The files have no secrets.
        for folder in (os.path.dirname(self.folder), self.folder, self.hosts):
            os.makedirs(folder, mode=0o755, exist_ok=True)
            os.chmod(folder, 0o755)  # noqa: S103
        files.replace(self._conf, wanted, mode=0o644)
        program = shutil.which(CONF.network.dnsmasq, path=os.environ.get("PATH", "") + commands.SBIN)
        if program is None:
            raise exception.NetworkSetupError(reason=f"{CONF.network.dnsmasq} is not installed")
        netns.call(self.net.namespace, lambda: commands.run([program, f"--conf-file={self._conf}"]))
        LOG.info("Started the DHCP server of network %s", self.net.id)

    def stop(self) -> None:
        """Stop the process, but keep its files."""
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
        """Return the id of the dnsmasq process of this network, or None if it is not running."""
        try:
            pid = int(read(self._pid) or "")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except (OSError, ValueError):
            return None
        return pid if self._conf.encode() in command else None

    def reserve(self, guest: Guest) -> None:
        """Offer the addresses of a guest by DHCP, and its name by DNS if no other guest of the network has the name."""
        label = label_of(guest.hostname)
        path = os.path.join(self.hosts, guest.uuid)
        before = read(path)
        if before is not None and not _is_named(before, label):
            self._release_names(guest.uuid)
        reserved = {name.lower() for name in CONF.network.reserved_names}
        named = label is not None and label.lower() not in reserved and self._claim(label, guest.uuid)
        text = "".join(host_line(vif, label if named else None) for vif in guest.vifs)
        if before != text:
            files.replace(path, text, mode=0o644)
        if before not in (None, text):
            # dnsmasq reads changed files by itself, but forgets their former content only at SIGHUP.
            self.reload()

    def reload(self) -> None:
        """Make the process read its files again."""
        if (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGHUP)

    def _claim(self, label: str, uuid: str) -> bool:
        """Claim a name for a guest, and return True unless another guest has the name."""
        os.makedirs(self._owners, mode=0o755, exist_ok=True)
        path = os.path.join(self._owners, label.lower())
        owner = read(path)
        if owner is None:
            files.replace(path, uuid, mode=0o644)
        return owner in (None, uuid)

    def _release_names(self, *uuids: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._owners):
                path = os.path.join(self._owners, name)
                if read(path) in uuids:
                    files.remove(path)

    def keep_only(self, uuids: Sequence[str]) -> None:
        """Remove the reservations of all guests except ``uuids``."""
        others: set[str] = set()
        with contextlib.suppress(FileNotFoundError):
            others = set(os.listdir(self.hosts)) - set(uuids)
        files.remove(*(os.path.join(self.hosts, uuid) for uuid in others))
        self._release_names(*others)

    def release(self, guest: Guest, vifs: Sequence[VIF]) -> None:
        """Release the DHCP leases of ``vifs``, which were removed. ``guest``: it has the remaining interfaces."""
        if guest.vifs:
            self.reserve(guest)
        else:
            files.remove(os.path.join(self.hosts, guest.uuid))
            self._release_names(guest.uuid)
        pid = self.pid()
        if pid is None:
            return
        leases = self._leases_v6(vifs) if self.net.ipv6_mode == DHCPV6 else None
        os.kill(pid, signal.SIGHUP)
        try:
            netns.call(self.net.namespace, lambda: self._release(vifs, leases))
        except OSError as error:
            LOG.warning("[instance: %s] Cannot release the DHCP leases on network %s, they expire later: %s",
                        guest.uuid, self.net.id, error)

    def _release(self, vifs: Sequence[VIF], leases: tuple[bytes, list[Lease6]] | None) -> None:
        """Send DHCP release messages for a guest. Runs in the namespace of the server."""
        gateway = self.net.gateway
        _send(socket.AF_INET, (gateway, 67), [_release_packet(gateway, vif.mac, address) for vif in vifs
                                              for address in vif.addresses(4)])
        if leases:
            server, released = leases
            _send(socket.AF_INET6, (_ALL_SERVERS, 547, 0, socket.if_nametoindex(_DEVICE)),
                  [_release_packet_v6(server, lease) for lease in released])

    def _leases_v6(self, vifs: Sequence[VIF]) -> tuple[bytes, list[Lease6]] | None:
        """Return the server's identifier and the IPv6 leases of these interfaces, or None if the server has none."""
        addresses = [address for vif in vifs for address in vif.addresses(6)]
        before = None
        # dnsmasq truncates and rewrites the file at every change and at SIGHUP: two equal reads mean a complete file.
        for _attempt in range(_READS):
            text = read(self._leases) or ""
            server, leases = _parse_leases_v6(text, addresses)
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
            # Only names from the conductor are used: guests cannot choose names by DHCP.
            "dhcp-ignore-names",
            "no-hosts", "no-resolv", "no-ping", "dhcp-authoritative", "strict-order", "domain-needed", "bogus-priv",
            f"dhcp-range={network.network_address},static,{network.netmask},{CONF.network.dhcp_lease_time}s",
            f"dhcp-lease-max={network.num_addresses}",
            f"dhcp-hostsdir={self.hosts}",
            f"addn-hosts={self.names}",
            f"dhcp-option-force=option:mtu,{net.mtu}",
            f"dhcp-option=option:router,{net.gateway}",
            f"dhcp-option=option:dns-server,{dns}",
            # Clients that support classless routes ignore the router option.
            f"dhcp-option=option:classless-static-route,{METADATA}/32,{net.gateway},0.0.0.0/0,{net.gateway}",
            f"dhcp-option=249,{METADATA}/32,{net.gateway},0.0.0.0/0,{net.gateway}",
            *(f"server={address}" for address in upstream(net.dns)),
            *(self._configuration_v6() if net.cidr_v6 else [])]
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
            # Not a default router, since the namespace does not forward IPv6.
            f"ra-param=gw,mtu:{net.mtu},0,0",
            f"dhcp-option=option6:dns-server,{dns}"]


def label_of(hostname: str) -> str | None:
    """Return the DNS label of a host name, or None if it is not a valid label."""
    label = hostname.split(".")[0]
    return label if _LABEL.fullmatch(label) else None


def host_line(vif: VIF, label: str | None) -> str:
    """Return a dhcp-host line of dnsmasq. ``label``: the name of the guest, if any."""
    addresses = "".join(f",{ipaddress.IPv4Address(address)}" for address in vif.addresses(4)[:1])
    addresses += "".join(f",[{fixed.address}]" for fixed in vif.fixed_ips if fixed.mode == DHCPV6)
    return f"{vif.mac.lower()}{addresses}{f',{label}' if label else ''}\n"


def _is_named(lines: str, label: str | None) -> bool:
    """Return True if these dhcp-host lines have this name or no name."""
    return all(line.rpartition(",")[2] == label or not _LABEL.fullmatch(line.rpartition(",")[2])
               for line in lines.splitlines())


def of_version(addresses: Sequence[str], version: int) -> list[str]:
    return [address for address in addresses if plain_ip.address(address).version == version]


def upstream(dns: Sequence[str], resolv_conf: str = "/etc/resolv.conf") -> list[str]:
    """Return the servers to which DNS queries are forwarded: those of the network, or those of the host if the network
    has none. Loopback addresses are left out, since the namespace cannot reach them."""
    if of_version(dns, 4):
        return of_version(dns, 4)
    servers = []
    for line in (read(resolv_conf) or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                address = plain_ip.address(words[1])
                if address.version == 4 and not address.is_loopback:
                    servers.append(str(address))
    return servers


def read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


# --- release messages ----------------------------------------------------------------------------------
def _release_packet(server: str, mac: str, address: str) -> bytes:
    hardware = bytes.fromhex(mac.replace(":", ""))
    message = struct.pack("!BBBBIHH4s4s4s4s16s64s128s", 1, 1, len(hardware), 0, 0x4E6F7661, 0, 0,
                          socket.inet_aton(address), bytes(4), bytes(4), bytes(4), hardware, b"", b"")
    message += b"\x63\x82\x53\x63" + b"\x35\x01\x07" + b"\x36\x04" + socket.inet_aton(server) + b"\xff"
    return message.ljust(300, b"\0")


def _release_packet_v6(server: bytes, lease: Lease6) -> bytes:
    address = _option(_IA_ADDRESS, socket.inet_pton(socket.AF_INET6, lease.address) + bytes(8))
    return (struct.pack("!B", _RELEASE) + b"nov" + _option(_CLIENT_ID, lease.client) + _option(_SERVER_ID, server)
            + _option(_IA_NA, struct.pack("!III", lease.iaid, 0, 0) + address))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("!HH", code, len(value)) + value


def _parse_leases_v6(text: str, addresses: Collection[str]) -> tuple[bytes | None, list[Lease6]]:
    """Return the server's identifier and the leases of these addresses from the content of dnsmasq's lease file."""
    server, leases = None, []
    for line in text.splitlines():
        words = line.split()
        try:
            if len(words) == 2 and words[0] == "duid":
                server = _raw(words[1])
            elif len(words) >= 5 and words[2] in addresses and words[1].isdecimal():
                leases.append(Lease6(words[2], int(words[1]), _raw(words[4])))
        except (ValueError, binascii.Error):
            continue  # an incomplete line, while dnsmasq writes the file
    return server, leases


def _raw(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _send(family: int, receiver: tuple[Any, ...], packets: Iterable[bytes]) -> None:
    """Send UDP packets from the interface of the network, as the DHCP server requires. Raises OSError."""
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _DEVICE.encode() + b"\0")
        for packet in packets:
            sender.sendto(packet, receiver)


# --- names of floating addresses -----------------------------------------------------------------------
class DnsRecords:
    """The DNS records of floating addresses for the guests on this host, by domain. Thread-safe. Records are stored in
    state_path/names, one file per domain, for the next start. The hosts file is below /run, where dnsmasq can read it
    after it drops root privileges."""

    def __init__(self, state_path: str, tag: str) -> None:
        self._state_folder = os.path.join(state_path, "names")
        self._path = names_file(tag)
        self._domains: dict[str, ServedDomain] | None = None
        # Held until the file is written, so that an older update never overwrites a newer one.
        self._lock = threading.RLock()

    def versions(self) -> dict[str, int]:
        """Return the versions of the served domains, by domain."""
        with self._lock:
            return {name: domain.version for name, domain in self._all().items() if not domain.removed}

    def poll(self, query: Callable[[dict[str, int]], Iterable[ServedDomain]], apply: Callable[[], None]) -> None:
        """Call ``query`` with the present versions and apply its updates, until it returns no more updates. Records of
        deleted domains are dropped before: they only protect against late messages, and a deleted domain may return
        with the same version (the host returned to the domain's zone, or the database was restored)."""
        updated = True
        while updated:
            with self._lock:
                self._domains = {name: domain for name, domain in self._all().items() if not domain.removed}
            updated = self.update(query(self.versions()), apply)

    def update(self, domains: Iterable[ServedDomain], apply: Callable[[], None]) -> bool:
        """Store the domains that are newer than their stored versions; return True if there are any. If this host
        has networks, the hosts file is written and ``apply`` called, which makes dnsmasq read the file. The state files
        are written last: after a crash before that, the next process requests the domains again."""
        with self._lock:
            present = self._all()
            newer = [domain for domain in domains
                     if (old := present.get(domain.domain)) is None or domain.version > old.version
                     or (domain.removed and not old.removed and domain.version == old.version)]
            for domain in newer:
                present[domain.domain] = domain
            if newer and os.path.exists(self._path):
                self.write_hosts_file()
                apply()
            for domain in newer:
                if domain.removed:
                    files.remove(self._state_file(domain.domain))
                else:
                    state_files.write(self._state_file(domain.domain), domain)
            return bool(newer)

    def write_hosts_file(self) -> None:
        """Write the hosts file, if its content has changed."""
        with self._lock:
            text = "".join(sorted(self._lines()))
            if read(self._path) != text:
                os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
                os.chmod(os.path.dirname(self._path), 0o755)  # noqa: S103
                files.replace(self._path, text, mode=0o644)

    def remove_hosts_file(self) -> None:
        """Remove the hosts file, when the last network of the host is removed."""
        with self._lock:
            files.remove(self._path)

    def _lines(self) -> Iterator[str]:
        own = (CONF.network.dhcp_domain or "").lower()
        for domain in self._all().values():
            for name, address in domain.names.items():
                full = f"{name}.{domain.domain}"
                # Names in the host's own domain (gateway, metadata service, guests) must not be overridden.
                if _NAME.fullmatch(full) and _is_address(address) and not (own and f".{full}".endswith(f".{own}")):
                    yield f"{address} {full}\n"

    def _all(self) -> dict[str, ServedDomain]:
        """Return the domains by name, read from the state files at the first call."""
        if self._domains is None:
            names = os.listdir(self._state_folder) if os.path.isdir(self._state_folder) else []
            domains = (state_files.read(os.path.join(self._state_folder, name), ServedDomain) for name in names
                       if name.endswith(".json"))
            self._domains = {domain.domain: domain for domain in domains if domain is not None}
        return self._domains

    def _state_file(self, domain: str) -> str:
        # The name is a hash, since a domain with the suffix may be longer than a file name may be.
        return os.path.join(self._state_folder, hashlib.sha256(domain.encode()).hexdigest() + ".json")


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
