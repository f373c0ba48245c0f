"""The tunnels of this host's networks: VXLAN to all other hosts with the same network.

Broadcasts and frames to unlearned MAC addresses are sent to all these hosts; the location of a guest is learned from
its frames. The conductor has the list of hosts (``peers``). A host requests the list when a network is set up, receives
changes as messages, and polls the conductor in case a message was lost."""

import json
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from nova import context, exception
from nova.common import plain_ip
from nova.network.linux import commands, plumbing
from nova.network.linux.state_files import HostNet, StateFiles
from nova.objects.networks.network import Peers
from nova.rpcapi.by_hosts import NetworkHosts
from nova.service.periodic import Periodic

LOG = logging.getLogger(__name__)

# Seconds between two polls of the conductor, and until a failed poll is repeated. The polled state is also sent in
# messages, which may be lost.
POLL_INTERVAL, POLL_RETRY = 300, 5
_ALL_MACS = "00:00:00:00:00:00"


class Tunnels:
    """The tunnels of this host. ``lock`` returns the lock of a network. Callers of RPC methods hold no other lock."""

    def __init__(self, state: StateFiles, lock: Callable[[str], AbstractContextManager[object]]) -> None:
        self._state, self._lock = state, lock
        self._host = ""
        self._conductor: NetworkHosts | None = None
        # Serializes RPC calls, so that an older list never arrives after a newer one.
        self._query_lock = threading.Lock()
        # True if the conductor may have networks of this host on record, perhaps from an earlier process.
        self._reported = True
        self.poller = Periodic("poll of the hosts of networks", POLL_INTERVAL, self.refresh, POLL_RETRY)

    def connect(self, host: str, conductor: NetworkHosts) -> None:
        """Set the name of this host and the conductor proxy."""
        self._host, self._conductor = host, conductor

    # --- changes of networks; callers hold the lock of the network -------------------------------------------------
    def up(self, net: HostNet) -> None:
        """Set up tunnels to the other hosts (peers) of a network whose device exists. Request unknown peers first."""
        if net.vni is None:
            return
        peers = self._state.peers(net.id)
        if peers is None and self._conductor is not None:
            try:
                with self._query_lock:
                    peers = next(iter(self._present({net.id: 0}, complete=False)), None)
            except exception.NovaException as error:
                LOG.warning("Cannot request the peer hosts of network %s, retrying; until then its guests cannot reach "
                            "other hosts: %s", net.id, error)
        if peers is not None:
            self._apply(net, peers)
        self.poller.wake()

    def removed(self, net: HostNet) -> None:
        """Report to the conductor that a network was removed from this host."""
        if net.vni is not None:
            self.poller.wake()

    def update_peers(self, peers: Peers) -> None:
        """Set up tunnels to the hosts in ``peers``, unless newer peers of the network are stored."""
        with self._lock(peers.network_id):
            net, stored = self._state.network(peers.network_id), self._state.peers(peers.network_id)
            if net is None or net.vni is None or (stored is not None and stored.version >= peers.version):
                return
            self._apply(net, peers)
        LOG.info("Network %s is on %d hosts", net.id, len(peers.hosts))

    def _present(self, networks: dict[str, int], complete: bool) -> list[Peers]:
        assert self._conductor is not None
        return self._conductor.present(context.admin(), self._host, plumbing.tunnel_address(), networks, complete)

    def refresh(self) -> None:
        """Report the networks of this host to the conductor, and set up tunnels to their other hosts."""
        with self._query_lock:
            networks = {}
            for network_id in self._state.networks():
                net, stored = self._state.network(network_id), self._state.peers(network_id)
                if net is not None and net.vni is not None:
                    networks[network_id] = stored.version if stored else 0
            updates = self._present(networks, complete=True) if networks or self._reported else []
            self._reported = bool(networks)
        for peers in updates:
            self.update_peers(peers)

    def _apply(self, net: HostNet, peers: Peers) -> None:
        """Store the peers of a network, and let its tunnels lead to exactly these hosts."""
        self._state.save_peers(peers)
        if net.wire_port is None or not plumbing.exists(net.wire_port):
            return
        own = plain_ip.address(plumbing.tunnel_address())
        wanted = set()
        for host, address in peers.hosts.items():
            if host != self._host and address != str(own):
                if plain_ip.address(address).version == own.version:
                    wanted.add(address)
                else:
                    LOG.error("No tunnel to host %s: its address %s and the address %s of this host have different IP "
                              "versions", host, address, own)
        entries = json.loads(commands.run(["bridge", "-json", "fdb", "show", "dev", net.wire_port]) or "[]")
        present = {entry["dst"] for entry in entries if entry.get("mac") == _ALL_MACS and "dst" in entry}
        entry = f"{_ALL_MACS} dev {net.wire_port} self dst"
        commands.bridge([*(f"fdb del {entry} {address}" for address in sorted(present - wanted)),
                         *(f"fdb append {entry} {address}" for address in sorted(wanted - present))])
