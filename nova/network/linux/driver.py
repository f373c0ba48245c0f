"""Networks on this host with Linux bridges, namespaces, dnsmasq and nftables. Needs root.

Modules: ``plumbing`` (devices), ``tunnels`` (VXLAN to other hosts), ``dhcp`` (dnsmasq), ``filters`` and
``guest_filters`` (packet filters), ``ruleset`` (restores the filters), ``egress_guard`` (closes ports while filters are
missing), ``state_files`` (plugged interfaces, for the next start). Plugging a VIF into a network that is up starts one
process, and another one when its device appears."""

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Sequence

import msgspec

from nova import context, exception
from nova.conf import CONF
from nova.network.base import HostNetwork
from nova.network.linux import egress_guard, filters, guest_filters, host_services, plumbing, state_files
from nova.network.linux.dhcp import DhcpServer, DnsRecords
from nova.network.linux.floating import FloatingAddresses
from nova.network.linux.groups import Groups
from nova.network.linux.ruleset import FilterBlock, Ruleset, fixed_block
from nova.network.linux.state_files import Guest, HostNet
from nova.network.linux.tunnels import POLL_INTERVAL, POLL_RETRY, Tunnels
from nova.objects.networks.network import VIF, GroupFilter, Peers, RuleSet, ServedDomain
from nova.objects.servers.instance import Instance
from nova.rpcapi.by_hosts import NetworkHosts
from nova.service.periodic import Periodic

LOG = logging.getLogger(__name__)

# Interval in seconds of the checks of DHCP servers and of packet filters.
WATCH_INTERVAL = 2
# Name of the filter block that isolates tenants from the host.
_HOST = ""
_GUEST_LOCKS = 64  # number of locks, which all guests share
# Number of guests per RPC call that requests rules.
_PAGE = 500


class LinuxNetwork(HostNetwork):
    """The network back end "linuxnet"."""

    def __init__(self) -> None:
        self._tag = state_files.tag(CONF.state_path)
        self._table = f"nova_{self._tag}"
        self._state = state_files.StateFiles(CONF.state_path)
        self._rules = state_files.NewestRules()
        self._filters = Ruleset(self._table)
        self._groups = Groups(CONF.state_path, self._table, self._filters)
        self._guards = egress_guard.Guards()
        self._tunnels = Tunnels(self._state, self._network_lock)
        self._floating = FloatingAddresses(CONF.state_path)
        self._dns = DnsRecords(CONF.state_path, self._tag)
        # Lock order: the guest (guests share locks), its networks by id, the host.
        self._guest_locks = [threading.RLock() for _number in range(_GUEST_LOCKS)]
        self._locks: dict[str, threading.RLock] = collections.defaultdict(threading.RLock)
        self._lock = threading.Lock()  # protects _locks and _up
        self._host_lock = threading.RLock()  # protects link numbers and the filters of the host
        self._up: dict[str, HostNet] = {}
        self._host: str | None = None
        self._conductor: NetworkHosts | None = None
        self._tasks: list[Periodic] = []

    # --- the interface --------------------------------------------------------------------------
    def connect(self, host: str, conductor: NetworkHosts) -> None:
        self._host, self._conductor = host, conductor
        self._tunnels.connect(host, conductor)

    def start(self, instances: Sequence[Instance]) -> None:
        plugged = self._plugged_guests()
        wanted = {instance.uuid: instance for instance in instances}
        for uuid in plugged.keys() - wanted.keys():
            # nova-compute decides later whether the guest stays on this host; until then the guest keeps its network.
            self._try("restore the interfaces of instance", uuid, self._restore, uuid, plugged[uuid])
        for uuid, instance in wanted.items():
            if instance.network_info and uuid not in plugged:
                LOG.warning("[instance: %s] No security group rules are stored on this host: all ingress is blocked "
                            "until the conductor sends the rules", uuid)
            self._try("plug the interfaces of instance", uuid, self.plug, instance, _newest(plugged.get(uuid, ())))
        for network_id in self._state.networks():
            with self._network_lock(network_id):
                uuids, net = self._state.guest_ids(network_id), self._state.network(network_id)
                if uuids and net:
                    DhcpServer(net, self._tag).keep_only(uuids)
                elif not uuids:
                    self._try("remove network", network_id, self._remove_network, network_id, None)
        self._try("set up", "floating addresses", self._floating.answer)
        if self._tasks:
            return  # start() is repeated after a failure: do not start the tasks twice
        self._tasks = [Periodic("dhcp-watch", WATCH_INTERVAL, self._watch_servers),
                       Periodic("filter-watch", WATCH_INTERVAL, self._watch_filters)]
        if self._conductor is not None:
            self._tasks += [
                Periodic("poll of the rules of guests", POLL_INTERVAL, self._poll_rules, POLL_RETRY),
                Periodic("poll of DNS records", POLL_INTERVAL, self._poll_dns, POLL_RETRY), self._tunnels.poller]
        for task in self._tasks:
            task.start()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def guests(self) -> set[str]:
        return {uuid for network_id in self._state.networks() for uuid in self._state.guest_ids(network_id)}

    def plug(self, instance: Instance, rules: RuleSet) -> None:
        moved = None not in (self._host, instance.host) and self._host != instance.host
        self._plug(instance.uuid, instance.hostname, instance.network_info, rules, alone=True, moved=moved)
        LOG.info("[instance: %s] Plugged network interfaces: %s", instance.uuid,
                 ", ".join(map(_described, instance.network_info)) or "none")

    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None:
        self._plug(instance.uuid, instance.hostname, [vif], rules, alone=False)
        LOG.info("[instance: %s] Plugged network interface %s: %s", instance.uuid, vif.id, _described(vif))

    def unplug(self, instance: Instance) -> None:
        self._unplug(instance.uuid, _by_network(instance.uuid, instance.network_info, check=False))

    def unplug_vif(self, instance: Instance, vif: VIF) -> None:
        with self._guest_lock(instance.uuid), self._network_lock(vif.network_id):
            self._unplug_network(vif.network_id, instance.uuid, [vif], {vif.id})

    def unplug_guest(self, uuid: str) -> None:
        self._unplug(uuid, {})

    def refresh_rules(self, uuid: str, rules: RuleSet) -> None:
        blocks: dict[str, FilterBlock] = {}
        with self._guest_lock(uuid), contextlib.ExitStack() as stack:
            rules = self._newest_rules(uuid, rules)
            networks = sorted(self._state.networks_of(uuid))
            plugged: list[tuple[HostNet, Guest]] = []
            for network_id in networks:
                stack.enter_context(self._network_lock(network_id))
            for network_id in networks:
                net, guest = self._state.network(network_id), self._state.guest(network_id, uuid)
                if net is None or guest is None:
                    continue
                guest.ingress = rules
                self._state.save_guest(network_id, guest)
                blocks.update(self._blocks(net, guest.vifs, rules))
                plugged.append((net, guest))
            blocks = self._filters.changed(blocks)
            if networks:
                self._change(rules, blocks)
            for net, guest in plugged:
                self._update_floating(net, guest)

    def refresh_groups(self, filters: Sequence[GroupFilter]) -> None:
        self._groups.refresh(filters)

    def _newest_rules(self, uuid: str, received: RuleSet) -> RuleSet:
        """Return the newest rules of a guest, after storing the received rules and security groups."""
        self._groups.store(received.filters)
        return self._rules.update(uuid, msgspec.structs.replace(received, filters=[]))

    def _change(self, rules: RuleSet, blocks: dict[str, FilterBlock],
                removed: dict[str, list[str]] | None = None) -> None:
        """Change filter blocks of a guest, and add missing blocks of its security groups."""
        with self._groups.lock:
            blocks = {**self._groups.missing_blocks(rules.groups), **blocks}
            if blocks or removed:
                self._filters.change(blocks, removed)

    def _poll_rules(self) -> None:
        assert self._conductor is not None
        stored = {uuid: _newest(guests) for uuid, guests in self._plugged_guests().items()}
        # Version 0 requests all rules: rules in the format of the previous release do not follow changes of groups.
        versions = {uuid: rules.version if not rules.rules and self._groups.complete(rules.groups) else 0
                    for uuid, rules in stored.items()}
        uuids = sorted(versions)
        for start in range(0, len(uuids), _PAGE):
            page = uuids[start:start + _PAGE]
            newer = self._conductor.rules(context.admin(), {uuid: versions[uuid] for uuid in page}, grouped=True)
            for rules in newer.values():
                self._groups.store(rules.filters)
            for uuid, rules in newer.items():
                self.refresh_rules(uuid, rules)
        with self._groups.lock:
            self._groups.remove_unused({group_id for guests in self._plugged_guests().values()
                                        for group_id in _newest(guests).groups})

    def refresh_peers(self, peers: Peers) -> None:
        self._tunnels.update_peers(peers)

    def refresh_names(self, domains: Sequence[ServedDomain]) -> None:
        self._dns.update(domains, self._reload_dns)

    def _reload_dns(self) -> None:
        for net in self._networks():
            DhcpServer(net, self._tag).reload()

    def _poll_dns(self) -> None:
        assert self._conductor is not None
        assert self._host is not None
        conductor, host = self._conductor, self._host
        self._dns.poll(lambda versions: conductor.names(context.admin(), host, versions), self._reload_dns)

    # --- guests ---------------------------------------------------------------------------------
    def _plug(self, uuid: str, hostname: str, vifs: Sequence[VIF], rules: RuleSet, alone: bool,
              moved: bool = False) -> None:
        """Plug interfaces of a guest. ``alone``: unplug all other interfaces of the guest. ``moved``: the guest is
        about to arrive from another host."""
        by_network = _by_network(uuid, vifs)
        plugged: list[tuple[HostNet, Guest]] = []
        blocks: dict[str, FilterBlock] = {}
        stale: dict[str, list[str]] = {}
        with self._guest_lock(uuid):
            rules = self._newest_rules(uuid, rules)
            with contextlib.ExitStack() as stack:
                # Lock the networks always in the same order, to avoid deadlocks.
                for network_id in sorted(by_network):
                    stack.enter_context(self._network_lock(network_id))
                for network_id, present in sorted(by_network.items()):
                    before = self._state.guest(network_id, uuid) or Guest(uuid=uuid)
                    new = {vif.id for vif in present}
                    others = [] if alone else [vif for vif in before.vifs if vif.id not in new]
                    guest = Guest(uuid=uuid, hostname=hostname, vifs=[*others, *present], ingress=rules)
                    net = self._store_network(state_files.network_of_vif(present[0]))
                    self._state.save_guest(net.id, guest)
                    self._bring_up(net)
                    DhcpServer(net, self._tag).reserve(guest)
                    stale.update(self._removals({vif.devname for vif in before.vifs}
                                                - {vif.devname for vif in guest.vifs}))
                    blocks.update(self._blocks(net, present, rules, moved))
                    plugged.append((net, guest))
                if blocks or stale:
                    self._change(rules, blocks, stale)
                for net, guest in plugged:
                    self._update_floating(net, guest)
            left = set(self._state.networks_of(uuid)) - by_network.keys() if alone else set()
            for network_id in sorted(left):
                with self._network_lock(network_id):
                    self._unplug_network(network_id, uuid, [], None)

    def _restore(self, uuid: str, guests: Sequence[Guest]) -> None:
        """Plug the interfaces of a guest again, as stored in its state files."""
        vifs = [vif for guest in guests for vif in guest.vifs]
        if vifs:
            self._plug(uuid, guests[0].hostname, vifs, _newest(guests), alone=True)

    def _unplug(self, uuid: str, by_network: dict[str, list[VIF]]) -> None:
        with self._guest_lock(uuid):
            for network_id in sorted({*self._state.networks_of(uuid), *by_network}):
                with self._network_lock(network_id):
                    self._unplug_network(network_id, uuid, by_network.get(network_id, []), None)

    # --- one network; callers hold its lock ------------------------------------------------------------
    def _store_network(self, net: HostNet) -> HostNet:
        """Store the network, with a link number if it has an uplink."""
        stored = self._state.network(net.id)
        net.tunnel = plumbing.tunnel_address() if net.vni is not None else None
        with self._host_lock:
            net.link = stored.link if stored else None
            if plumbing.uplink() is None:
                net.link = None
            elif net.link is None:
                others = [self._state.network(other) for other in self._state.networks() if other != net.id]
                taken = {other.link for other in others if other and other.link is not None}
                net.link = plumbing.free_link(net.id, taken, plumbing.addresses())
            if net != stored:
                self._state.save_network(net)
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
        blocks = {net.bridge_port: fixed_block(ports, egress_guard.port())}
        if net.wire_port:
            # No guard at an interface of the host that is bridged as a whole: it may carry other traffic.
            exclusive = net.vni is not None or net.vlan is not None
            blocks[net.wire_port] = fixed_block(filters.wire(self._table, net.wire_port, net),
                                                 egress_guard.port() if exclusive else None)
        with self._host_lock:
            self._filters.change({**blocks, _HOST: self._host_table(self._networks())})
        self._dns.write_hosts_file()
        server.ensure()
        for guest in self._state.guests(net.id):
            server.reserve(guest)
        if self._floating.mapping(net.id):
            self._floating.apply(net)  # the namespace is new
        self._tunnels.up(net)
        with self._lock:
            self._up[net.id] = net

    def _unplug_network(self, network_id: str, uuid: str, vifs: Sequence[VIF], only: set[str] | None) -> None:
        """Unplug the interfaces of a guest with the ids ``only`` (None: all), and ``vifs``, whether stored or not."""
        guest = self._state.guest(network_id, uuid) or Guest(uuid=uuid)
        unplugged = [vif for vif in guest.vifs if only is None or vif.id in only]
        guest.vifs = [vif for vif in guest.vifs if vif not in unplugged]
        devices = {vif.devname for vif in [*unplugged, *vifs] if state_files.DEVICE.fullmatch(vif.devname)}
        if not guest.vifs and not set(self._state.guest_ids(network_id)) - {uuid}:
            self._remove_network(network_id, uuid, devices)
            return
        if devices:
            self._filters.change({}, self._removals(devices))
        net = self._state.network(network_id)
        if net is not None:
            DhcpServer(net, self._tag).release(guest, unplugged)
        if guest.vifs:
            self._state.save_guest(network_id, guest)
        else:
            self._state.delete_guest(network_id, uuid)
        if net is not None:
            self._update_floating(net, guest)

    def _update_floating(self, net: HostNet, guest: Guest) -> None:
        if self._floating.update(net.id, guest):
            with self._host_lock:
                self._filters.change({_HOST: self._host_table(self._networks())})
            self._floating.apply(net)

    def _remove_network(self, network_id: str, uuid: str | None, devices: set[str] | None = None) -> None:
        """Remove a network without guests, and all tables and files of Nova if it was the last network."""
        net = self._state.network(network_id)
        with self._host_lock:
            others = [other for other in self._networks() if other.id != network_id]
            removed = self._removals(devices or ())
            if not others:
                self._dns.remove_hosts_file()
            if net is not None:
                foreign = plumbing.other_ports(net, self._tag)
                DhcpServer(net, self._tag).remove()
                plumbing.remove(net, self._tag)
                removed[net.bridge_port] = filters.remove_port(self._table, net.bridge_port)
                for device in foreign:
                    removed[net.bridge_port] += filters.remove_port(self._table, device, "others")
                if net.wire_port:
                    removed[net.wire_port] = filters.remove_wire(self._table, net.wire_port)
            if others:
                self._filters.change({_HOST: self._host_table(others)}, removed)
            else:
                self._filters.remove()
            with self._lock:
                self._up.pop(network_id, None)
            self._state.delete_network(network_id)
            self._floating.remove(network_id)
        if net is not None:
            self._tunnels.removed(net)

    def _networks(self) -> list[HostNet]:
        nets = (self._state.network(network_id) for network_id in self._state.networks())
        return [net for net in nets if net is not None]

    def _host_table(self, nets: Sequence[HostNet]) -> FilterBlock:
        uplink = plumbing.uplink()
        services = host_services.matches(plumbing.addresses(), uplink, nets)
        return fixed_block(filters.host(self._table, nets, uplink, services, host_services.unreachable(),
                                         self._floating.all()))

    def _blocks(self, net: HostNet, vifs: Sequence[VIF], rules: RuleSet, moved: bool = False) -> dict[str, FilterBlock]:
        """Return the filter blocks of these interfaces, by device. Raises ValueError for invalid values."""
        return {vif.devname: FilterBlock(functools.partial(guest_filters.guest, self._table, vif, net, rules, moved),
                                         egress_guard.guest(vif)) for vif in vifs}

    def _removals(self, devices: Collection[str]) -> dict[str, list[str]]:
        """Return the commands that remove the packet filters of these devices of guests, by device."""
        return {device: guest_filters.remove(self._table, device) for device in sorted(devices)}

    def _plugged_guests(self) -> dict[str, list[Guest]]:
        """Return the stored Guest objects of each uuid, one object per network of the guest."""
        guests: dict[str, list[Guest]] = collections.defaultdict(list)
        for network_id in self._state.networks():
            for guest in self._state.guests(network_id):
                guests[guest.uuid].append(guest)
        return guests

    def _guest_lock(self, uuid: str) -> threading.RLock:
        """Return the lock of a guest, which keeps older rules from overwriting newer ones."""
        return self._guest_locks[hash(uuid) % _GUEST_LOCKS]

    def _network_lock(self, network_id: str) -> threading.RLock:
        with self._lock:
            return self._locks[network_id]

    def _try(self, action: str, target: str, function: Callable[..., None], *args: object) -> None:
        """Call a function and log its failure, so that an error of one guest or network does not affect the others."""
        try:
            function(*args)
        except (exception.NovaException, OSError, ValueError) as error:
            LOG.error("Cannot %s %s, continuing: %s", action, target, error)

    def _watch_servers(self) -> None:
        for network_id in list(self._up):
            with self._network_lock(network_id):
                net = self._up.get(network_id)
                if net is None or DhcpServer(net, self._tag).pid() is not None:
                    continue
                LOG.warning("The DHCP server of network %s has exited, restarting it", network_id)
                self._try("restart the DHCP server of", network_id, DhcpServer(net, self._tag).ensure)

    def _watch_filters(self) -> None:
        """Verify packet filters and egress guards, without locks that are held during RPC calls."""
        self._try("verify", "the packet filters", self._filters.verify)
        self._try("install", "the egress guards", self._install_guards)

    def _install_guards(self) -> None:
        links = {net.uplink_port: egress_guard.link() for net in list(self._up.values()) if net.link is not None}
        self._guards.ensure({**self._filters.guards(), **links})


def _by_network(uuid: str, vifs: Sequence[VIF], check: bool = True) -> dict[str, list[VIF]]:
    """Return the VIFs of a guest by network. Raises NetworkSetupError for a VIF that cannot be plugged."""
    networks: dict[str, list[VIF]] = collections.defaultdict(list)
    for vif in vifs:
        if check:
            try:
                state_files.network_of_vif(vif)
            except ValueError as error:
                LOG.error("[instance: %s] Cannot plug network interface %s: %s", uuid, vif.id, error)
                raise exception.NetworkSetupError(reason=str(error)) from error
        networks[vif.network_id].append(vif)
    return dict(networks)


def _newest(guests: Sequence[Guest]) -> RuleSet:
    return max((guest.ingress for guest in guests), key=lambda rules: rules.version, default=RuleSet())


def _described(vif: VIF) -> str:
    return f"{' '.join(vif.addresses())} on {vif.bridge}"
