"""Floating addresses on a host, which replies to ARP requests for them at its uplink and routes them to guests.

    external ── uplink ── route to the link of the network ── namespace: floating address <-> fixed address ── guest

The root namespace has a route and a proxy ARP entry for each floating address. The namespace of the network translates
the address, since networks may overlap. A gratuitous ARP request announces an address that arrives on this host.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping

from nova import exception
from nova.network.linux import commands, filters, netns, plumbing, state_files
from nova.network.linux.state_files import Guest, HostNet
from nova.objects.base import Object

LOG = logging.getLogger(__name__)

_ETHERNET, _ARP, _REQUEST = b"\x08\x06", b"\0\x01\x08\0\6\4", b"\0\1"


class ProxyEntries(Object, kw_only=True):
    """The proxy ARP entries on this host: floating address -> uplink. Stored before the entries are created."""

    uplinks: dict[str, str] = {}


class FloatingAddresses:
    """The floating addresses of this host, by network. Callers hold the lock of the network."""

    def __init__(self, state_path: str) -> None:
        self._file = os.path.join(state_path, "floating", "made.json")
        self._lock = threading.RLock()
        # Network -> guest -> floating address -> fixed address.
        self._mapping: dict[str, dict[str, dict[str, str]]] = {}

    def all(self) -> list[str]:
        """Return the floating addresses of all guests on this host."""
        with self._lock:
            return sorted(address for network_id in self._mapping for address in self.mapping(network_id))

    def mapping(self, network_id: str) -> dict[str, str]:
        """Return the fixed addresses of a network by floating address."""
        with self._lock:
            guests = self._mapping.get(network_id, {}).values()
            return {floating: fixed for mapping in guests for floating, fixed in mapping.items()}

    def update(self, network_id: str, guest: Guest) -> bool:
        """Store the floating addresses of a guest of a network, and return True if they have changed."""
        floating = guest.ingress.floating
        mapping = {floating[vif.id]: vif.addresses(4)[0] for vif in guest.vifs
                   if vif.id in floating and vif.addresses(4)}
        with self._lock:
            before = self._mapping.get(network_id, {}).get(guest.uuid, {})
            if mapping:
                self._mapping.setdefault(network_id, {})[guest.uuid] = mapping
            elif before:
                del self._mapping[network_id][guest.uuid]
            return before != mapping

    def remove(self, network_id: str) -> None:
        """Remove the floating addresses of a network that was removed from this host."""
        with self._lock:
            removed = self._mapping.pop(network_id, None)
        if removed:
            self.answer()

    def apply(self, net: HostNet) -> None:
        """Set up address translation in a network, and proxy ARP on this host. Raises NetworkSetupError."""
        mapping = self.mapping(net.id)
        netns.call(net.namespace, lambda: commands.nft(filters.translate(mapping)))
        if mapping and net.link is None:
            LOG.warning("Network %s has no uplink on this host: its floating addresses %s are unreachable", net.id,
                        ", ".join(sorted(mapping)))
        elif mapping:
            inner = plumbing.link_addresses(net.link or 0)[1]
            commands.ip([f"route replace {address}/32 via {inner} dev {net.uplink_port}"
                         for address in sorted(mapping)])
        self.answer(announce=mapping if net.link is not None else ())

    def answer(self, announce: Mapping[str, str] | tuple[()] = ()) -> None:
        """Make the proxy ARP entries match the floating addresses of this host, and announce addresses."""
        with self._lock:
            uplink = plumbing.uplink()
            wanted = dict.fromkeys(self.all(), uplink) if uplink else {}
            entries = (state_files.read(self._file, ProxyEntries) or ProxyEntries()).uplinks
            if not wanted and not entries:
                return
            state_files.write(self._file, ProxyEntries(uplinks={**entries, **dict.fromkeys(wanted, uplink or "")}))
            for address, device in entries.items():
                if wanted.get(address) != device:
                    lines = [] if address in wanted else [f"route del {address}/32"]
                    lines += [f"neigh del proxy {address} dev {device}"] if plumbing.exists(device) else []
                    for line in lines:  # missing entries do not matter
                        with contextlib.suppress(exception.NetworkSetupError):
                            commands.ip([line])
            if uplink and wanted:
                plumbing.disable_proxy_delay(uplink)
                commands.ip([f"neigh replace proxy {address} dev {uplink}" for address in sorted(wanted)])
            state_files.write(self._file, ProxyEntries(uplinks=dict.fromkeys(wanted, uplink or "")))
        for address in announce:
            _announce(address, uplink or "")


def _announce(address: str, device: str) -> None:
    """Send a gratuitous ARP request, which updates the ARP caches of routers and hosts on the link."""
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
            sock.bind((device, 0))
            mac, own = sock.getsockname()[4], socket.inet_aton(address)
            sock.send(b"\xff" * 6 + mac + _ETHERNET + _ARP + _REQUEST + mac + own + b"\0" * 6 + own)
    except OSError as error:
        LOG.warning("Cannot announce floating IP %s on %s, traffic may reach its previous host for now: %s", address,
                    device, error)
