"""State files of the networks and interfaces on this host: networks/<network id>/ below the state path.

A file is written before the first device of its network is created, and deleted after the last device is removed. So
every device that Nova created has a state file, also after a crash."""

import collections
import hashlib
import ipaddress
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from nova.common import files, plain_ip
from nova.objects.base import Object
from nova.objects.networks.network import VIF, Peers, RuleSet, link_local

LOG = logging.getLogger(__name__)

T = TypeVar("T")

DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
IDENTIFIER = re.compile(r"[A-Za-z0-9-]{1,64}")


class HostNet(Object, kw_only=True):
    """A network on this host. ``link``: the number of its point-to-point link to the root namespace."""

    id: str
    label: str = ""
    bridge: str
    cidr: str
    gateway: str
    dns: list[str] = []
    mtu: int = 1500
    vlan: int | None = None
    bridge_interface: str | None = None
    vni: int | None = None
    cidr_v6: str | None = None
    gateway_v6: str | None = None
    ipv6_mode: str | None = None
    # IP address of this host's end of the tunnels.
    tunnel: str | None = None
    link: int | None = None

    @property
    def namespace(self) -> str:
        return namespace(self.id)

    @property
    def short(self) -> str:
        """Return the part of device names that identifies the network. Device names have at most 15 characters."""
        return self.id.replace("-", "")[:11]

    @property
    def bridge_port(self) -> str:
        """Return the end of the veth pair to the namespace that is a port of the bridge."""
        return f"nvp{self.short}"

    @property
    def uplink_port(self) -> str:
        """Return the root namespace's end of the veth pair that connects guests with external networks."""
        return f"nvu{self.short}"

    @property
    def wire_port(self) -> str | None:
        """Return the port towards other hosts: a tunnel, a VLAN of the host's interface, or the interface itself."""
        if self.vni is not None:
            return f"nvx{self.short}"
        if not self.bridge_interface:
            return None
        return self.bridge_interface if self.vlan is None else f"nvl{self.short}"

    @property
    def prefix(self) -> int:
        return plain_ip.network(self.cidr).prefixlen

    @property
    def gateway_mac(self) -> str:
        """Return the MAC address of the gateway, the same on every host. Guests have other prefixes."""
        digest = hashlib.sha256(self.id.encode()).hexdigest()
        return f"fa:16:3f:{digest[:2]}:{digest[2:4]}:{digest[4:6]}"

    @property
    def router(self) -> str:
        """Return the link-local address of the gateway, the source of router advertisements and DHCPv6 replies."""
        return link_local(self.gateway_mac)


class Guest(Object, kw_only=True):
    """The interfaces of an instance on a network, and its ingress rules."""

    uuid: str
    hostname: str = ""
    vifs: list[VIF] = []
    # Ingress rules, with only the ids of security groups; nova.network.linux.groups stores the rules of the groups.
    ingress: RuleSet = msgspec.field(default_factory=RuleSet)


def namespace(network_id: str) -> str:
    """Return the name of the network namespace of a network."""
    return f"nova-{network_id[:12]}"


def network_of_vif(vif: VIF) -> HostNet:
    """Return the network of a VIF. Raises ValueError if a required value is missing, or if a value is unsafe in
    configuration files and commands."""
    fixed, fixed_v6 = vif.first(4), vif.first(6)
    if fixed is None:
        raise ValueError(f"the interface {vif.id} has no IPv4 address")
    for version, kind in ((4, ipaddress.IPv4Address), (6, ipaddress.IPv6Address)):
        for address in vif.addresses(version):
            kind(address)
    cidr = ipaddress.IPv4Network(fixed.cidr or plain_ip.interface(f"{fixed.address}/{fixed.prefix}").network)
    devices = [vif.bridge, vif.devname] + ([vif.bridge_interface] if vif.bridge_interface else [])
    for value, pattern in [(vif.network_id, IDENTIFIER), (vif.mac, MAC), *((name, DEVICE) for name in devices)]:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not valid for the interface {vif.id}")
    net = HostNet(id=vif.network_id, label=vif.label, bridge=vif.bridge, cidr=str(cidr),
                  gateway=str(ipaddress.IPv4Address(fixed.gateway or "none")),
                  dns=[str(plain_ip.address(address)) for address in vif.dns], mtu=vif.mtu, vlan=vif.vlan,
                  bridge_interface=vif.bridge_interface, vni=vif.vni)
    if fixed_v6 is not None:
        net.cidr_v6 = str(plain_ip.v6_network(fixed_v6.cidr))
        net.gateway_v6 = str(plain_ip.v6_address(fixed_v6.gateway or "none"))
        net.ipv6_mode = fixed_v6.mode
    return net


def tag(state_path: str) -> str:
    """Return a short identifier of a state path, for names of devices and tables: a machine may have several paths."""
    return hashlib.sha256(os.path.abspath(state_path).encode()).hexdigest()[:8]


class NewestRules:
    """The newest rules that this host received for each guest, also for guests that are not on this host (yet)."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._newest: collections.OrderedDict[str, RuleSet] = collections.OrderedDict()
        self._mutex = threading.Lock()

    def update(self, uuid: str, rules: RuleSet) -> RuleSet:
        """Return the newest rules of a guest, which are ``rules`` unless newer rules arrived before."""
        with self._mutex:
            newest = self._newest.get(uuid)
            if newest is None or rules.version >= newest.version:
                newest = self._newest[uuid] = rules
            self._newest.move_to_end(uuid)
            while len(self._newest) > self._size:
                self._newest.popitem(last=False)
            return newest


class StateFiles:
    """The state files below one state path. Callers hold the lock of the network they write to."""

    def __init__(self, state_path: str) -> None:
        self.root = os.path.join(state_path, "networks")

    def networks(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        except FileNotFoundError:
            return []

    def network(self, network_id: str) -> HostNet | None:
        return read(self._file(network_id, "network"), HostNet)

    def save_network(self, net: HostNet) -> None:
        write(self._file(net.id, "network"), net)

    def peers(self, network_id: str) -> Peers | None:
        """Return the peer hosts of a network from the newest received list."""
        return read(self._file(network_id, "peers"), Peers)

    def save_peers(self, peers: Peers) -> None:
        write(self._file(peers.network_id, "peers"), peers)

    def delete_network(self, network_id: str) -> None:
        shutil.rmtree(os.path.join(self.root, network_id), ignore_errors=True)

    def guest(self, network_id: str, uuid: str) -> Guest | None:
        return read(self._guest_file(network_id, uuid), Guest)

    def has_address(self, network_id: str, address: str, uuid: str) -> bool:
        """Return True if the instance has an interface with this address on the network on this host."""
        guest = self.guest(network_id, uuid)
        if guest is not None:
            return any(address in vif.addresses() for vif in guest.vifs)
        try:
            os.stat(self._guest_file(network_id, uuid))
        except FileNotFoundError:
            return False
        except OSError as error:
            LOG.warning("Cannot read the state file of the guest with address %s, assuming that the guest exists: %s",
                        address, error)
        return True  # the file exists, but this process may not read it

    def guests(self, network_id: str) -> Iterator[Guest]:
        """Yield the guests of a network; a guest with an unreadable file has no interfaces."""
        for uuid in self.guest_ids(network_id):
            yield self.guest(network_id, uuid) or Guest(uuid=uuid)

    def guest_ids(self, network_id: str) -> list[str]:
        try:
            names = os.listdir(os.path.join(self.root, network_id, "instances"))
        except FileNotFoundError:
            return []
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def networks_of(self, uuid: str) -> list[str]:
        return [network for network in self.networks() if os.path.exists(self._guest_file(network, uuid))]

    def save_guest(self, network_id: str, guest: Guest) -> None:
        write(self._guest_file(network_id, guest.uuid), guest)

    def delete_guest(self, network_id: str, uuid: str) -> None:
        files.remove(self._guest_file(network_id, uuid))

    def _file(self, network_id: str, name: str) -> str:
        return os.path.join(self.root, network_id, f"{name}.json")

    def _guest_file(self, network_id: str, uuid: str) -> str:
        return self._file(network_id, os.path.join("instances", uuid))


def read(path: str, kind: type[T]) -> T | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        LOG.warning("Ignoring the state file %s, which cannot be read: %s", path, error)
        return None


def write(path: str, value: Object) -> None:
    """Replace a file atomically."""
    data = msgspec.json.encode(value)
    folder = os.path.dirname(path)
    # The metadata service, which is not root, must be able to read the files, for any umask. They have no secrets.
    network = os.path.dirname(folder)
    for missing in [path for path in (os.path.dirname(network), network, folder) if not os.path.isdir(path)]:
        os.makedirs(missing, exist_ok=True)
        os.chmod(missing, 0o755)  # noqa: S103
    files.replace(path, data, mode=0o644)
