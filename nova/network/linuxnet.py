"""Networks of this host by Linux bridges, namespaces, dnsmasq and nftables. Needs root.

The pieces: ``plumbing`` (devices), ``tunnels`` (to other hosts), ``dhcp`` (dnsmasq), ``filters`` and ``guest_filters``
(packet filters), ``ruleset`` and ``gates`` (they stay, or all is closed), ``records`` (what is plugged, for the next
start). A VIF on a network that is up costs one process, and one more when its device comes.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from nova import context, exception
from nova.conf import CONF
from nova.network import filters, gates, guest_filters, host_services, plumbing, records
from nova.network.asking import Asker
from nova.network.base import HostNetwork
from nova.network.dhcp import DhcpServer
from nova.network.floating import FloatingAddresses
from nova.network.groups import Groups
from nova.network.names import Names
from nova.network.records import Guest, HostNet
from nova.network.ruleset import Part, Ruleset
from nova.network.tunnels import Tunnels
from nova.objects.floating_ip_dns import ServedDomain
from nova.objects.instance import Instance
from nova.objects.network import VIF, GroupFilter, Peers, RuleSet
from nova.rpcapi.network_hosts import NetworkHosts

LOG = logging.getLogger(__name__)

# Seconds between two looks whether the DHCP servers live, and whether the packet filters are what they shall be.
WATCH_INTERVAL = 2
# The part of the filters that keeps tenants apart from the host.
_HOST = ""
_GUEST_LOCKS = 64
# Guests whose rules are asked for at once.
_PAGE = 500


class LinuxNetwork(HostNetwork):
    def __init__(self) -> None:
        self._tag = records.tag(CONF.state_path)
        self._table = f"nova_{self._tag}"
        self._records = records.Records(CONF.state_path)
        self._rules = records.RuleBook()
        self._filters = Ruleset(self._table)
        self._groups = Groups(CONF.state_path, self._table, self._filters)
        self._gates = gates.Gates()
        self._tunnels = Tunnels(self._records, self._network_lock)
        self._floating = FloatingAddresses(CONF.state_path)
        self._names = Names(CONF.state_path, self._tag)
        # Taken in this order: of the guest (several share one), of its networks by id, of the host.
        self._guest_locks = [threading.RLock() for _number in range(_GUEST_LOCKS)]
        self._locks: dict[str, threading.RLock] = collections.defaultdict(threading.RLock)
        self._lock = threading.Lock()  # of _locks and _up
        self._host_lock = threading.RLock()  # what networks share: link numbers and the root namespace's table
        self._up: dict[str, HostNet] = {}
        self._host: str | None = None
        self._desk: NetworkHosts | None = None
        self._rules_asker = Asker("the rules of guests", self._ask_rules)
        self._names_asker = Asker("names of floating addresses", self._ask_names)
        self._watchers: list[threading.Thread] = []
        self._stop = threading.Event()

    # --- the interface --------------------------------------------------------------------------
    def connect(self, host: str, desk: NetworkHosts) -> None:
        self._host, self._desk = host, desk
        self._tunnels.connect(host, desk)

    def start(self, instances: Sequence[Instance]) -> None:
        known = self._records_of_guests()
        wanted = {instance.uuid: instance for instance in instances}
        for uuid in known.keys() - wanted.keys():
            # Whether it may stay is for others to say: until then it keeps its network.
            self._try("restore", uuid, self._restore, uuid, known[uuid])
        for uuid, instance in wanted.items():
            if instance.network_info and uuid not in known:
                LOG.warning("The rules of %s are not known here: closed until they are told", uuid)
            self._try("restore", uuid, self.plug, instance, _newest(known.get(uuid, ())))
        for network_id in self._records.networks():
            with self._network_lock(network_id):
                uuids, net = self._records.guest_ids(network_id), self._records.network(network_id)
                if uuids and net:
                    DhcpServer(net, self._tag).keep_only(uuids)
                elif not uuids:
                    self._try("remove network", network_id, self._remove_network, network_id, None)
        self._try("answer for", "floating addresses", self._floating.answer)
        self._watch()
        self._tunnels.start()
        if self._desk is not None:
            self._rules_asker.start()
            self._names_asker.start()

    def stop(self) -> None:
        self._stop.set()
        self._tunnels.stop()
        self._rules_asker.stop()
        self._names_asker.stop()

    def guests(self) -> set[str]:
        return {uuid for network_id in self._records.networks() for uuid in self._records.guest_ids(network_id)}

    def plug(self, instance: Instance, rules: RuleSet) -> None:
        moved = None not in (self._host, instance.host) and self._host != instance.host
        self._plug(instance.uuid, instance.hostname, instance.network_info, rules, alone=True, moved=moved)
        LOG.info("Interfaces of %s are ready on this host: %s", instance.uuid,
                 ", ".join(map(_named, instance.network_info)) or "none")

    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None:
        self._plug(instance.uuid, instance.hostname, [vif], rules, alone=False)
        LOG.info("Interface %s of %s is ready on this host: %s", vif.id, instance.uuid, _named(vif))

    def unplug(self, instance: Instance) -> None:
        self._unplug(instance.uuid, _by_network(instance.uuid, instance.network_info, check=False))

    def unplug_vif(self, instance: Instance, vif: VIF) -> None:
        with self._guest_lock(instance.uuid), self._network_lock(vif.network_id):
            self._unplug_network(vif.network_id, instance.uuid, [vif], {vif.id})

    def unplug_guest(self, uuid: str) -> None:
        self._unplug(uuid, {})

    def refresh_rules(self, uuid: str, rules: RuleSet) -> None:
        made: dict[str, Part] = {}
        with self._guest_lock(uuid), contextlib.ExitStack() as stack:
            rules = self._heard(uuid, rules)
            networks = sorted(self._records.networks_of(uuid))
            here: list[tuple[HostNet, Guest]] = []
            for network_id in networks:
                stack.enter_context(self._network_lock(network_id))
            for network_id in networks:
                net, guest = self._records.network(network_id), self._records.guest(network_id, uuid)
                if net is None or guest is None:
                    continue
                guest.rules, guest.ingress = RuleSet(), rules
                self._records.save_guest(network_id, guest)
                made.update(self._parts(net, guest.vifs, rules))
                here.append((net, guest))
            made = self._filters.unlike(made)
            if networks:
                self._change(rules, made)
            for net, guest in here:
                self._lead(net, guest)

    def refresh_groups(self, filters: Sequence[GroupFilter]) -> None:
        self._groups.refresh(filters)

    def _heard(self, uuid: str, told: RuleSet) -> RuleSet:
        """What a guest lets in after this was told; its groups are remembered for themselves."""
        self._groups.hear(told.filters)
        return self._rules.newest(uuid, msgspec.structs.replace(told, filters=[]))

    def _change(self, rules: RuleSet, made: dict[str, Part], gone: dict[str, list[str]] | None = None) -> None:
        """Make these filters of a guest new, and of its groups what is not made yet."""
        with self._groups.lock:
            made = {**self._groups.parts(rules.groups), **made}
            if made or gone:
                self._filters.change(made, gone)

    def _ask_rules(self) -> None:
        """The conductor's word on the rules of all guests here, where ours is older."""
        assert self._desk is not None
        here = {uuid: _newest(guests) for uuid, guests in self._records_of_guests().items()}
        # Rules in the words of the last release do not change with the groups.
        known = {uuid: rules.version if not rules.rules and self._groups.complete(rules.groups) else 0
                 for uuid, rules in here.items()}
        uuids = sorted(known)
        for start in range(0, len(uuids), _PAGE):
            page = uuids[start:start + _PAGE]
            told = self._desk.rules(context.admin(), {uuid: known[uuid] for uuid in page}, grouped=True)
            for rules in told.values():
                self._groups.hear(rules.filters)
            for uuid, rules in told.items():
                self.refresh_rules(uuid, rules)
        with self._groups.lock:
            self._groups.tidy({group_id for guests in self._records_of_guests().values()
                               for group_id in _newest(guests).groups})

    def refresh_peers(self, peers: Peers) -> None:
        self._tunnels.told(peers)

    def refresh_names(self, domains: Sequence[ServedDomain]) -> None:
        self._names.hear(domains, self._reread_names)

    def _reread_names(self) -> None:
        # Also those that are being started: they read it later than they can be told to.
        for net in self._networks():
            DhcpServer(net, self._tag).reread()

    def _ask_names(self) -> None:
        """The conductor's word on the names that guests may ask for, some domains at a time."""
        assert self._desk is not None
        assert self._host is not None
        desk, host = self._desk, self._host
        self._names.ask(lambda known: desk.names(context.admin(), host, known), self._reread_names)

    # --- guests ---------------------------------------------------------------------------------
    def _plug(self, uuid: str, hostname: str, vifs: Sequence[VIF], rules: RuleSet, alone: bool,
              moved: bool = False) -> None:
        """Make these interfaces ready. ``alone``: the guest has no others (any more); ``moved``: it runs elsewhere."""
        by_network = _by_network(uuid, vifs)
        here: list[tuple[HostNet, Guest]] = []
        made: dict[str, Part] = {}
        stale: dict[str, list[str]] = {}
        with self._guest_lock(uuid):
            rules = self._heard(uuid, rules)
            with contextlib.ExitStack() as stack:
                # In one order everywhere, so that two guests never wait for each other.
                for network_id in sorted(by_network):
                    stack.enter_context(self._network_lock(network_id))
                for network_id, found in sorted(by_network.items()):
                    before = self._records.guest(network_id, uuid) or Guest(uuid=uuid)
                    new = {vif.id for vif in found}
                    kept = [] if alone else [vif for vif in before.vifs if vif.id not in new]
                    guest = Guest(uuid=uuid, hostname=hostname, vifs=[*kept, *found], ingress=rules)
                    net = self._plug_network(records.of_vif(found[0]), guest)
                    stale.update(self._gone({vif.devname for vif in before.vifs}
                                            - {vif.devname for vif in guest.vifs}))
                    made.update(self._parts(net, found, rules, moved))
                    here.append((net, guest))
                if made or stale:
                    self._change(rules, made, stale)
                for net, guest in here:
                    self._lead(net, guest)
            gone = set(self._records.networks_of(uuid)) - by_network.keys() if alone else set()
            for network_id in sorted(gone):
                with self._network_lock(network_id):
                    self._unplug_network(network_id, uuid, [], None)

    def _restore(self, uuid: str, guests: Sequence[Guest]) -> None:
        """Plug a guest again as it was."""
        vifs = [vif for guest in guests for vif in guest.vifs]
        if vifs:
            self._plug(uuid, guests[0].hostname, vifs, _newest(guests), alone=True)

    def _unplug(self, uuid: str, by_network: dict[str, list[VIF]]) -> None:
        with self._guest_lock(uuid):
            for network_id in sorted({*self._records.networks_of(uuid), *by_network}):
                with self._network_lock(network_id):
                    self._unplug_network(network_id, uuid, by_network.get(network_id, []), None)

    # --- one network, under its lock ------------------------------------------------------------
    def _plug_network(self, net: HostNet, guest: Guest) -> HostNet:
        """Network and DHCP of a guest. Its packet filters are still to be made."""
        net = self._settle(net)
        self._records.save_guest(net.id, guest)
        self._bring_up(net)
        DhcpServer(net, self._tag).reserve(guest)
        return net

    def _settle(self, net: HostNet) -> HostNet:
        """Record the network, with a link number if it has a way out."""
        recorded = self._records.network(net.id)
        net.tunnel = plumbing.tunnel_address() if net.vni is not None else None
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
        for device in plumbing.other_ports(net, self._tag):
            ports += filters.port(self._table, device, "others")
        made = {net.bridge_port: _always(ports, gates.port())}
        if net.wire_port:
            # An interface of the host's own, given to a network as it is, may have other uses.
            ours = net.vni is not None or net.vlan is not None
            made[net.wire_port] = _always(filters.wire(self._table, net.wire_port, net), gates.port() if ours else None)
        with self._host_lock:
            self._filters.change({**made, _HOST: self._host_table(self._networks())})
        self._names.make()
        server.ensure()
        for guest in self._records.guests(net.id):
            server.reserve(guest)
        if self._floating.leads(net.id):
            self._floating.make(net)  # its namespace was made anew
        self._tunnels.up(net)
        with self._lock:
            self._up[net.id] = net

    def _unplug_network(self, network_id: str, uuid: str, vifs: Sequence[VIF], only: set[str] | None) -> None:
        """Of a guest's interfaces these (by id), or all with None. ``vifs`` go as well, recorded or not."""
        guest = self._records.guest(network_id, uuid) or Guest(uuid=uuid)
        going = [vif for vif in guest.vifs if only is None or vif.id in only]
        guest.vifs = [vif for vif in guest.vifs if vif not in going]
        devices = {vif.devname for vif in [*going, *vifs] if records.DEVICE.fullmatch(vif.devname)}
        if not guest.vifs and not set(self._records.guest_ids(network_id)) - {uuid}:
            self._remove_network(network_id, uuid, devices)
            return
        if devices:
            self._filters.change({}, self._gone(devices))
        net = self._records.network(network_id)
        if net is not None:
            DhcpServer(net, self._tag).release(guest, going)
        if guest.vifs:
            self._records.save_guest(network_id, guest)
        else:
            self._records.forget_guest(network_id, uuid)
        if net is not None:
            self._lead(net, guest)

    def _lead(self, net: HostNet, guest: Guest) -> None:
        """Floating addresses lead to the guest as it was told, and no others do."""
        if self._floating.note(net.id, guest):
            with self._host_lock:
                self._filters.change({_HOST: self._host_table(self._networks())})
            self._floating.make(net)

    def _remove_network(self, network_id: str, uuid: str | None, devices: set[str] | None = None) -> None:
        """Unmake a network whose last guest goes, and everything of ours when it was the last network."""
        net = self._records.network(network_id)
        with self._host_lock:
            others = [other for other in self._networks() if other.id != network_id]
            gone = self._gone(devices or ())
            if not others:
                self._names.unmake()
            if net is not None:
                foreign = plumbing.other_ports(net, self._tag)
                DhcpServer(net, self._tag).remove()
                plumbing.remove(net, self._tag)
                gone[net.bridge_port] = filters.port_gone(self._table, net.bridge_port)
                for device in foreign:
                    gone[net.bridge_port] += filters.port_gone(self._table, device, "others")
                if net.wire_port:
                    gone[net.wire_port] = filters.wire_gone(self._table, net.wire_port)
            if others:
                self._filters.change({_HOST: self._host_table(others)}, gone)
            else:
                self._filters.remove()
            with self._lock:
                self._up.pop(network_id, None)
            self._records.forget_network(network_id)
            self._floating.forget(network_id)
        if net is not None:
            self._tunnels.gone(net)

    # --- helpers ----------------------------------------------------------------------------------
    def _networks(self) -> list[HostNet]:
        found = (self._records.network(network_id) for network_id in self._records.networks())
        return [net for net in found if net is not None]

    def _host_table(self, nets: Sequence[HostNet]) -> Part:
        uplink = plumbing.uplink()
        services = host_services.matches(plumbing.addresses(), uplink, nets)
        return _always(filters.host(self._table, nets, uplink, services, host_services.unreachable(),
                                    self._floating.all()))

    def _parts(self, net: HostNet, vifs: Sequence[VIF], rules: RuleSet, moved: bool = False) -> dict[str, Part]:
        """The packet filters of these interfaces. Raises ValueError for bad values."""
        return {vif.devname: Part(functools.partial(_guest_lines, self._table, vif, net, rules, moved),
                                  gates.guest(vif)) for vif in vifs}

    def _gone(self, devices: Collection[str]) -> dict[str, list[str]]:
        """What removes the packet filters of these devices of guests."""
        return {device: guest_filters.gone(self._table, device) for device in sorted(devices)}

    def _records_of_guests(self) -> dict[str, list[Guest]]:
        found: dict[str, list[Guest]] = collections.defaultdict(list)
        for network_id in self._records.networks():
            for guest in self._records.guests(network_id):
                found[guest.uuid].append(guest)
        return found

    def _guest_lock(self, uuid: str) -> threading.RLock:
        """A guest's rules are written in the order in which they became the newest."""
        return self._guest_locks[hash(uuid) % _GUEST_LOCKS]

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
            if not self._watchers:
                self._watchers = [threading.Thread(target=target, name=name, daemon=True) for name, target in (
                    ("dhcp-watch", self._watch_servers), ("filter-watch", self._watch_filters))]
                for watcher in self._watchers:
                    watcher.start()

    def _watch_servers(self) -> None:
        while not self._stop.wait(WATCH_INTERVAL):
            for network_id in list(self._up):
                with self._network_lock(network_id):
                    net = self._up.get(network_id)
                    if net is None or DhcpServer(net, self._tag).pid() is not None:
                        continue
                    LOG.warning("The DHCP server of network %s died: starting it again", network_id)
                    self._try("restart the DHCP server of", network_id, DhcpServer(net, self._tag).ensure)

    def _watch_filters(self) -> None:
        """Takes no lock that is held while anybody is waited for."""
        while True:
            self._try("verify", "the packet filters", self._filters.verify)
            self._try("close", "the gates", self._close_gates)
            if self._stop.wait(WATCH_INTERVAL):
                return

    def _close_gates(self) -> None:
        links = {net.uplink_port: gates.link() for net in list(self._up.values()) if net.link is not None}
        self._gates.ensure({**self._filters.gates(), **links})


def _guest_lines(table: str, vif: VIF, net: HostNet, rules: RuleSet, moved: bool, lost: bool) -> list[str]:
    # The connections of a guest are as unknown when they were forgotten as when they were made elsewhere.
    return guest_filters.guest(table, vif, net, rules, moved or lost)


def _always(lines: Sequence[str], gate: gates.Gate | None = None) -> Part:
    return Part(lambda lost: lines, gate)


def _by_network(uuid: str, vifs: Sequence[VIF], check: bool = True) -> dict[str, list[VIF]]:
    """A guest's VIFs by network. Raises NetworkSetupError for a VIF that cannot be plugged."""
    found: dict[str, list[VIF]] = collections.defaultdict(list)
    for vif in vifs:
        if check:
            try:
                records.of_vif(vif)
            except ValueError as error:
                LOG.error("Interface %s of %s: %s", vif.id, uuid, error)
                raise exception.NetworkSetupError(reason=str(error)) from error
        found[vif.network_id].append(vif)
    return dict(found)


def _newest(guests: Sequence[Guest]) -> RuleSet:
    """What a guest lets in, by its records on several networks."""
    return max((guest.lets_in for guest in guests), key=lambda rules: rules.version, default=RuleSet())


def _named(vif: VIF) -> str:
    return f"{' '.join(vif.addresses())} on {vif.bridge}"
