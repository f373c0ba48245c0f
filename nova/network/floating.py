"""Floating addresses on a host: who is asked for one answers with the uplink's MAC address, and the way leads on.

    outside ── uplink ── route to the link of the network ── namespace: floating address <-> fixed address ── guest

The root namespace has a route to each and answers for it (proxy ARP), the network's namespace translates: networks may
overlap. Neighbours are told when an address comes to this host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping

from nova import exception
from nova.network import commands, filters, netns, plumbing, records
from nova.network.records import Guest, HostNet
from nova.objects.base import Object

LOG = logging.getLogger(__name__)

_ETHERNET, _ARP, _REQUEST = b"\x08\x06", b"\0\x01\x08\0\6\4", b"\0\1"


class Made(Object, kw_only=True):
    """What is answered for on this host: floating address -> the uplink that this is done at. Written before it is."""

    uplinks: dict[str, str] = {}


class FloatingAddresses:
    """Those of one host, by network. Callers hold the lock of the network; the rest is shared."""

    def __init__(self, state_path: str) -> None:
        self._file = os.path.join(state_path, "floating", "made.json")
        self._lock = threading.RLock()
        # Network -> guest -> floating address -> fixed address.
        self._leads: dict[str, dict[str, dict[str, str]]] = {}

    def all(self) -> list[str]:
        """Those that lead to a guest here."""
        with self._lock:
            return sorted(address for network_id in self._leads for address in self.leads(network_id))

    def leads(self, network_id: str) -> dict[str, str]:
        """Floating address -> fixed address of a network."""
        with self._lock:
            found = self._leads.get(network_id, {}).values()
            return {floating: fixed for leads in found for floating, fixed in leads.items()}

    def note(self, network_id: str, guest: Guest) -> bool:
        """What leads to a guest of a network from now on; whether that is something new."""
        told = guest.lets_in.floating
        leads = {told[vif.id]: vif.addresses(4)[0] for vif in guest.vifs if vif.id in told and vif.addresses(4)}
        with self._lock:
            before = self._leads.get(network_id, {}).get(guest.uuid, {})
            if leads:
                self._leads.setdefault(network_id, {})[guest.uuid] = leads
            elif before:
                del self._leads[network_id][guest.uuid]
            return before != leads

    def forget(self, network_id: str) -> None:
        """The network is not on this host any more."""
        with self._lock:
            gone = self._leads.pop(network_id, None)
        if gone:
            self.answer()

    def make(self, net: HostNet) -> None:
        """Translate those of a network, and answer for all of this host. Raises NetworkSetupError."""
        leads = self.leads(net.id)
        netns.call(net.namespace, lambda: commands.nft(filters.translated(leads)))
        if leads and net.link is None:
            LOG.warning("Network %s has no way out on this host: %s lead nowhere", net.id, ", ".join(sorted(leads)))
        elif leads:
            inside = plumbing.link_addresses(net.link or 0)[1]
            commands.ip([f"route replace {address}/32 via {inside} dev {net.uplink_port}" for address in sorted(leads)])
        self.answer(announce=leads if net.link is not None else ())

    def answer(self, announce: Mapping[str, str] | tuple[()] = ()) -> None:
        """Answer at the uplink for what leads to a guest here, and for nothing else that was ever made."""
        with self._lock:
            uplink = plumbing.uplink()
            wanted = dict.fromkeys(self.all(), uplink) if uplink else {}
            made = (records.read(self._file, Made) or Made()).uplinks
            if not wanted and not made:
                return
            records.write(self._file, Made(uplinks={**made, **dict.fromkeys(wanted, uplink or "")}))
            for address, device in made.items():
                if wanted.get(address) != device:
                    _forget(address, device, keep_route=address in wanted)
            if uplink and wanted:
                plumbing.answer_at_once(uplink)
                commands.ip([f"neigh replace proxy {address} dev {uplink}" for address in sorted(wanted)])
            records.write(self._file, Made(uplinks=dict.fromkeys(wanted, uplink or "")))
        for address in announce:
            _announce(address, uplink or "")


def _forget(address: str, device: str, keep_route: bool) -> None:
    """What is not there any more is fine."""
    lines = [] if keep_route else [f"route del {address}/32"]
    for line in [*lines, *([f"neigh del proxy {address} dev {device}"] if plumbing.exists(device) else [])]:
        with contextlib.suppress(exception.NetworkSetupError):
            commands.ip([line])


def _announce(address: str, device: str) -> None:
    """Tell neighbours that the address is here now: they may have asked another host before."""
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
            sock.bind((device, 0))
            mac, own = sock.getsockname()[4], socket.inet_aton(address)
            sock.send(b"\xff" * 6 + mac + _ETHERNET + _ARP + _REQUEST + mac + own + b"\0" * 6 + own)
    except OSError as error:
        LOG.warning("Floating IP %s could not be announced on %s: %s", address, device, error)
