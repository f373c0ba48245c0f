"""The tunnels of this host's networks: VXLAN to every other host that has the network too.

What a guest broadcasts, and what goes to addresses that nobody has heard of yet, is sent to each of these hosts; where
a guest is, is learned from what it sends. Who the other hosts are is the conductor's knowledge (``peers``): a host asks
when a network comes to it, is told of changes, and asks again once in a while in case it was not.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from nova import context, exception
from nova.network import commands, plumbing
from nova.network.asking import Asker
from nova.network.records import HostNet, Records
from nova.objects import plain_ip
from nova.objects.network import Peers
from nova.rpcapi.network_hosts import NetworkHosts

LOG = logging.getLogger(__name__)

_EVERYBODY = "00:00:00:00:00:00"


class Tunnels:
    """``lock`` is that of a network. Nobody who waits for the conductor holds up more than the network in question."""

    def __init__(self, records: Records, lock: Callable[[str], AbstractContextManager[None]]) -> None:
        self._records = records
        self._lock = lock
        self._host = ""
        self._desk: NetworkHosts | None = None
        # One question at a time: an older one must not be answered after a newer.
        self._asking = threading.Lock()
        # Whether the conductor may believe that we have some; an earlier life of this host may have left that.
        self._had = True
        self._asker = Asker("the other hosts of networks", self.refresh)

    def connect(self, host: str, desk: NetworkHosts) -> None:
        """Who we are, and whom to ask."""
        self._host, self._desk = host, desk

    def start(self) -> None:
        """The service starts: everything is asked for, in the background."""
        if self._desk is not None:
            self._asker.start()

    def stop(self) -> None:
        self._asker.stop()

    # --- networks come and go; their lock is held -------------------------------------------------
    def up(self, net: HostNet) -> None:
        """The network's device is there: fill in the peers. The first time this asks the conductor."""
        if net.vni is None:
            return
        known = self._records.peers(net.id)
        if known is None and self._desk is not None:
            try:
                with self._asking:
                    known = next(iter(self._ask({net.id: 0}, complete=False)), None)
            except exception.NovaException as error:
                LOG.warning("Network %s does not reach other hosts yet: %s", net.id, error)
        if known is not None:
            self._use(net, known)
        self._asker.wake()

    def gone(self, net: HostNet) -> None:
        """The network has left this host."""
        if net.vni is not None:
            self._asker.wake()

    def told(self, peers: Peers) -> None:
        """Other hosts have a network than before; what is older than what we know says nothing."""
        with self._lock(peers.network_id):
            net, known = self._records.network(peers.network_id), self._records.peers(peers.network_id)
            if net is None or net.vni is None or (known is not None and known.version >= peers.version):
                return
            self._use(net, peers)
        LOG.info("Network %s is on %d hosts now", net.id, len(peers.hosts))

    # --- asking -----------------------------------------------------------------------------------
    def _ask(self, networks: dict[str, int], complete: bool) -> list[Peers]:
        assert self._desk is not None
        return self._desk.present(context.admin(), self._host, plumbing.tunnel_address(), networks, complete)

    def refresh(self) -> None:
        """Say which networks are here, and learn who has them too."""
        with self._asking:
            networks = {}
            for network_id in self._records.networks():
                net, known = self._records.network(network_id), self._records.peers(network_id)
                if net is not None and net.vni is not None:
                    networks[network_id] = known.version if known else 0
            answer = self._ask(networks, complete=True) if networks or self._had else []
            self._had = bool(networks)
        for peers in answer:
            self.told(peers)

    # --- doing ------------------------------------------------------------------------------------
    def _use(self, net: HostNet, peers: Peers) -> None:
        """Send to these hosts from now on, and to no others."""
        self._records.save_peers(peers)
        if net.wire_port is None or not plumbing.exists(net.wire_port):
            return
        own = plain_ip.address(plumbing.tunnel_address())
        wanted = set()
        for host, address in peers.hosts.items():
            if host != self._host and address != str(own):
                if plain_ip.address(address).version == own.version:
                    wanted.add(address)
                else:
                    LOG.error("Host %s cannot be reached from %s: its tunnels end at %s", host, own, address)
        there = _targets(net.wire_port)
        entry = f"{_EVERYBODY} dev {net.wire_port} self dst"
        commands.bridge([*(f"fdb del {entry} {address}" for address in sorted(there - wanted)),
                         *(f"fdb append {entry} {address}" for address in sorted(wanted - there))])


def _targets(device: str) -> set[str]:
    """Where broadcasts go now."""
    shown = json.loads(commands.run(["bridge", "-json", "fdb", "show", "dev", device]) or "[]")
    return {entry["dst"] for entry in shown if entry.get("mac") == _EVERYBODY and "dst" in entry}
