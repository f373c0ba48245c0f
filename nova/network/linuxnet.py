"""Networks of this host by Linux bridges, namespaces, dnsmasq and nftables. Needs root.

The pieces: ``plumbing`` (devices), ``dhcp`` (dnsmasq), ``filters`` (packet filters), ``records``
(what is plugged, for the next start). A VIF on a network that is up costs one process.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from nova import exception
from nova.conf import CONF
from nova.network import commands, filters, plumbing, records
from nova.network.base import HostNetwork
from nova.network.dhcp import DhcpServer
from nova.network.records import Guest, HostNet
from nova.objects.instance import Instance
from nova.objects.network import VIF, FilterRule

LOG = logging.getLogger(__name__)

# Seconds between two looks whether the DHCP servers live.
WATCH_INTERVAL = 5


class LinuxNetwork(HostNetwork):
    def __init__(self) -> None:
        self._tag = records.tag(CONF.state_path)
        self._table = f"nova_{self._tag}"
        self._records = records.Records(CONF.state_path)
        self._locks: dict[str, threading.RLock] = collections.defaultdict(threading.RLock)
        self._lock = threading.Lock()  # of _locks and _up
        self._host_lock = threading.RLock()  # what networks share: link numbers and the root namespace's table
        self._up: dict[str, HostNet] = {}
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    # --- the interface --------------------------------------------------------------------------
    def start(self, instances: Sequence[Instance]) -> None:
        wanted = {instance.uuid for instance in instances}
        known = self._known_rules()
        for network_id in self._records.networks():
            with self._network_lock(network_id):
                for uuid in self._records.guest_ids(network_id):
                    if uuid not in wanted:
                        self._try("forget", uuid, self._unplug_network, network_id, uuid, [])
        for instance in instances:
            if instance.network_info and instance.uuid not in known:
                LOG.warning("The rules of %s are not known here: closed until they are refreshed", instance.uuid)
            self._try("restore", instance.uuid, self.plug, instance, known.get(instance.uuid, []))
        for network_id in self._records.networks():
            with self._network_lock(network_id):
                uuids, net = self._records.guest_ids(network_id), self._records.network(network_id)
                if uuids and net:
                    DhcpServer(net, self._tag).keep_only(uuids)
                elif not uuids:
                    self._try("remove network", network_id, self._remove_network, network_id, None)
        self._watch()

    def stop(self) -> None:
        """Stop watching the DHCP servers. Networks and servers go on."""
        self._stop.set()

    def plug(self, instance: Instance, rules: Sequence[FilterRule]) -> None:
        by_network = _by_network(instance)
        lines: list[str] = []
        with contextlib.ExitStack() as stack:
            # In one order everywhere, so that two guests never wait for each other.
            for network_id in sorted(by_network):
                stack.enter_context(self._network_lock(network_id))
            for network_id, vifs in sorted(by_network.items()):
                lines += self._plug_network(network_id, instance, vifs, rules)
            if lines:
                commands.nft([*filters.base(self._table), *lines])
        LOG.info("Interfaces of %s are ready on this host: %s", instance.uuid,
                 ", ".join(f"{vif.address} on {vif.bridge}" for vif in instance.network_info) or "none")

    def unplug(self, instance: Instance) -> None:
        by_network = _by_network(instance, check=False)
        for network_id in sorted({*self._records.networks_of(instance.uuid), *by_network}):
            with self._network_lock(network_id):
                self._unplug_network(network_id, instance.uuid, by_network.get(network_id, []))

    def refresh_rules(self, instance: Instance, rules: Sequence[FilterRule]) -> None:
        lines: list[str] = []
        with contextlib.ExitStack() as stack:
            networks = sorted(self._records.networks_of(instance.uuid))
            for network_id in networks:
                stack.enter_context(self._network_lock(network_id))
            for network_id in networks:
                net, guest = self._records.network(network_id), self._records.guest(network_id, instance.uuid)
                if net is None or guest is None:
                    continue
                guest.rules = list(rules)
                self._records.save_guest(network_id, guest)
                lines += [line for vif in guest.vifs
                          for line in filters.guest(self._table, vif, net.gateway, guest.rules)]
            if lines:
                commands.nft([*filters.base(self._table), *lines])

    # --- one network, under its lock ------------------------------------------------------------
    def _plug_network(self, network_id: str, instance: Instance, vifs: list[VIF],
                      rules: Sequence[FilterRule]) -> list[str]:
        """Network and DHCP of some VIFs; answers the packet filters that are still to be made."""
        net = records.of_vif(vifs[0])
        guest = Guest(uuid=instance.uuid, hostname=instance.hostname, vifs=vifs, rules=list(rules))
        before = self._records.guest(network_id, instance.uuid)
        net = self._settle(net)
        self._records.save_guest(network_id, guest)
        self._bring_up(net)
        server = DhcpServer(net, self._tag)
        server.reserve(guest)
        stale = {vif.devname for vif in before.vifs} - {vif.devname for vif in vifs} if before else set()
        lines = [line for device in stale for line in filters.gone(self._table, device)]
        return lines + [line for vif in vifs for line in filters.guest(self._table, vif, net.gateway, rules)]

    def _settle(self, net: HostNet) -> HostNet:
        """Record the network, with a link number if it has a way out."""
        recorded = self._records.network(net.id)
        with self._host_lock:
            net.link = recorded.link if recorded else None
            if plumbing.uplink() is None:
                net.link = None
            elif net.link is None:
                others = [self._records.network(other) for other in self._records.networks() if other != net.id]
                taken = {other.link for other in others if other and other.link is not None}
                net.link = plumbing.free_link(net.id, taken, plumbing.addresses())
            if net != recorded:
                self._records.save_network(net)
        return net

    def _bring_up(self, net: HostNet) -> None:
        server = DhcpServer(net, self._tag)
        if self._up.get(net.id) == net and plumbing.complete(net):
            server.ensure()
            return
        plumbing.ensure(net, self._tag)
        ports = filters.port(self._table, net.bridge_port)
        if net.wire_port:
            ports += filters.wire(self._table, net.wire_port, net.gateway)
        with self._host_lock:
            commands.nft([*filters.base(self._table), *ports, *self._host_table(self._networks())])
        server.ensure()
        for guest in self._records.guests(net.id):
            server.reserve(guest)
        with self._lock:
            self._up[net.id] = net

    def _unplug_network(self, network_id: str, uuid: str, vifs: Sequence[VIF]) -> None:
        """``vifs`` are removed as well, whether they are recorded or not."""
        guest = self._records.guest(network_id, uuid) or Guest(uuid=uuid)
        devices = {vif.devname for vif in [*guest.vifs, *vifs] if records.DEVICE.fullmatch(vif.devname)}
        if not set(self._records.guest_ids(network_id)) - {uuid}:
            self._remove_network(network_id, uuid, devices)
            return
        lines = [line for device in devices for line in filters.gone(self._table, device)]
        if lines:
            commands.nft([*filters.base(self._table), *lines])
        net = self._records.network(network_id)
        if net is not None:
            DhcpServer(net, self._tag).release(guest)
        self._records.forget_guest(network_id, uuid)

    def _remove_network(self, network_id: str, uuid: str | None, devices: set[str] | None = None) -> None:
        """Unmake a network whose last guest goes, and everything of ours when it was the last network."""
        net = self._records.network(network_id)
        with self._host_lock:
            others = [other for other in self._networks() if other.id != network_id]
            lines = filters.base(self._table)
            for device in devices or ():
                lines += filters.gone(self._table, device)
            if net is not None:
                DhcpServer(net, self._tag).remove()
                plumbing.remove(net, self._tag)
                lines += filters.port_gone(self._table, net.bridge_port)
                if net.wire_port:
                    lines += filters.wire_gone(self._table, net.wire_port)
            commands.nft([*lines, *self._host_table(others)] if others else filters.remove_table(self._table))
            with self._lock:
                self._up.pop(network_id, None)
            self._records.forget_network(network_id)

    # --- helpers ----------------------------------------------------------------------------------
    def _networks(self) -> list[HostNet]:
        found = (self._records.network(network_id) for network_id in self._records.networks())
        return [net for net in found if net is not None]

    def _host_table(self, nets: Sequence[HostNet]) -> list[str]:
        uplink = plumbing.uplink()
        public = sorted({address for device, address in plumbing.addresses() if device == uplink})
        return filters.host(self._table, nets, uplink, public)

    def _known_rules(self) -> dict[str, list[FilterRule]]:
        return {guest.uuid: guest.rules for network_id in self._records.networks()
                for guest in self._records.guests(network_id)}

    @contextlib.contextmanager
    def _network_lock(self, network_id: str) -> Iterator[None]:
        with self._lock:
            lock = self._locks[network_id]
        with lock:
            yield

    def _try(self, what: str, whom: str, function: Callable[..., None], *args: object) -> None:
        """At start one broken guest must not keep the others from the network."""
        try:
            function(*args)
        except (exception.NovaException, OSError, ValueError) as error:
            LOG.error("Network: could not %s %s: %s", what, whom, error)

    def _watch(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch_servers, name="dhcp-watch", daemon=True)
                self._watcher.start()

    def _watch_servers(self) -> None:
        while not self._stop.wait(WATCH_INTERVAL):
            for network_id in list(self._up):
                with self._network_lock(network_id):
                    net = self._up.get(network_id)
                    if net is None or DhcpServer(net, self._tag).pid() is not None:
                        continue
                    LOG.warning("The DHCP server of network %s died: starting it again", network_id)
                    self._try("restart the DHCP server of", network_id, DhcpServer(net, self._tag).ensure)


def _by_network(instance: Instance, check: bool = True) -> dict[str, list[VIF]]:
    """The VIFs of an instance by network. Raises NetworkSetupError for a VIF that cannot be plugged."""
    found: dict[str, list[VIF]] = collections.defaultdict(list)
    for vif in instance.network_info:
        if check:
            try:
                records.of_vif(vif)
            except ValueError as error:
                LOG.error("Interface %s of %s: %s", vif.id, instance.uuid, error)
                raise exception.NetworkSetupError(reason=str(error)) from error
        found[vif.network_id].append(vif)
    return dict(found)
