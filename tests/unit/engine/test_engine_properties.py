"""Property test of the saga engine with lost, duplicated and delayed messages.

Orders and reports are messages that may be delivered late, twice, in any order, or never (then
the lease expires). Hosts fail at random and lose their state, servers move between hosts, and an
external service reports failures for requests that took effect. After all faults have ended,
every server is in a final state, records are consistent, guests and disks are exactly where the
rows say, and the external service has no leftovers. A server never runs on two hosts.
"""

import collections
import contextlib
import os
import random
import tempfile

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nova import conf, context, exception
from nova.compute.service import SERVICE_VERSION
from nova.conductor import create
from nova.conductor.acceptance import start
from nova.conductor.endpoints.by_hosts import Guests as Reports
from nova.conductor.resources import addresses
from nova.conductor.saga.engine import Engine
from nova.conductor.service_events import process_network_events
from nova.conf import CONF
from nova.db import audit
from nova.db.accounts import flavors
from nova.db.hosts import compute_nodes, services
from nova.db.maintenance import migrate
from nova.db.networks import networks
from nova.db.servers import actions, evictions, servers
from nova.db.sql import clock
from nova.db.volumes import volumes
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.networks.network import Network
from nova.objects.servers import states
from nova.objects.servers.external_event import ExternalEvent
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import BlockDevice
from nova.objects.servers.order import StepReport
from nova.objects.servers.server_request import ServerCreate
from nova.objects.volumes.volume import Volume
from nova.operations import REGISTRY
from nova.operations.framework.base import event_key, failure_of, journal
from tests.unit.databases import new_database, open_database, open_events, unfinished
from tests.unit.engine.world import Bind, Guests, Outside, Quiet, Scheduler, StepContext, World, awaiting_plugs

HOSTS = ("a", "b", "c")
CTX = context.RequestContext(user_id="u", project_id="p", overwrite=False)
POWER_STATES = {states.ACTIVE: states.RUNNING, states.STOPPED: states.SHUTDOWN, states.PAUSED: states.POWER_PAUSED,
                states.SOFT_DELETED: states.SHUTDOWN, states.RESCUED: states.RUNNING}
FINAL = {states.RESIZED, states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED, states.RESCUED, states.ERROR,
         states.DELETED, states.SOFT_DELETED}


class Inline:
    """A thread pool that runs work synchronously, so that the machine controls the order."""

    def submit(self, kind, project_id, function, *args):
        function(*args)


class Machine(RuleBasedStateMachine):
    def __init__(self, url=None):
        super().__init__()
        conf.register()
        CONF.set_override("lease", 0, group="conductor")
        CONF.set_override("allow_swap", True, group="volume")
        self.directory = tempfile.TemporaryDirectory()
        if url:
            migrate.sync(url)
        else:
            url = new_database(self.directory.name)
        self.chance = random.Random(0)
        self.world = World(name="conductor@test", db=open_database(url), transport=None, scheduler=None, compute=None,
                           fleet=Quiet(), usage=Quiet())
        self.world.orders = []
        self.world.scheduler = Scheduler(self.world, self.chance)
        self.world.allocator = addresses.EmbeddedAllocator(self.world.db)
        self._allocate = addresses.allocate
        addresses.allocate = awaiting_plugs(self._allocate, self.chance)
        self.engine = Engine(self.world, Inline())
        self.hosts = {host: Guests(host) for host in HOSTS}
        self.outside = Bind.outside = Outside(self.chance)
        REGISTRY[Bind.name] = Bind
        self.seen = {host: {} for host in HOSTS}
        self.reports = []
        self.uuids = []
        self.reset = set()
        self.volumes = []
        self.down = set()

    @initialize(seed=st.integers(0, 2**32))
    def furnish(self, seed):
        self.chance.seed(seed)

        def fill(connection):
            flavors.create(connection, Flavor(flavorid="1", name="m1", memory_mb=100, vcpus=1, root_gb=1))
            flavors.create(connection, Flavor(flavorid="2", name="m2", memory_mb=100, vcpus=2, root_gb=1))
            networks.create(connection, Network(uuid=new_uuid(), label="n", cidr="10.0.0.0/28", gateway="",
                                                bridge=""))
            for host in HOSTS:
                services.register(connection, host, "nova-compute", "compute", SERVICE_VERSION)
                uuid = new_uuid()
                compute_nodes.report(connection, host, [ComputeNode(
                    uuid=uuid, host=host, hypervisor_hostname=host, hypervisor_type="fake", hypervisor_version=1,
                    provider=Provider(uuid=uuid, name=host, inventories={
                        # Capacity for three servers on each host, so that some claims fail.
                        "VCPU": Inventory(total=3), "MEMORY_MB": Inventory(total=300),
                        "DISK_GB": Inventory(total=3)}))])

        self.world.db.write(fill)

    def teardown(self):
        try:
            if self.uuids:
                self.calm_down()
        finally:
            self.close()

    def close(self):
        addresses.allocate = self._allocate
        del REGISTRY[Bind.name]
        CONF.clear_override("lease", group="conductor")
        CONF.clear_override("allow_swap", group="volume")
        self.world.db.close()
        self.directory.cleanup()

    # --- users -----------------------------------------------------------------------------------
    @rule(count=st.integers(1, 3), twice=st.booleans())
    def boot(self, count, twice):
        request = ServerCreate(name="s", flavor_id="1", min_count=count, max_count=count, first_uuid=new_uuid())
        try:
            created = create.create(self.engine, CTX, request)
        except exception.OverQuota:
            return
        self.uuids += created.uuids
        if twice:
            again = create.create(self.engine, CTX, request)
            assert (again.uuids, again.reservation_id, again.repeated) == (created.uuids, created.reservation_id, True)

    @rule(pick=st.integers(0, 100),
          name=st.sampled_from(["delete", "delete", "stop", "start", "reboot_hard", "pause", "unpause", "rescue",
                                 "unrescue"]))
    def operate(self, pick, name):
        if self.uuids:
            with contextlib.suppress(exception.Conflict, exception.NotFound):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], name, {})

    @rule(pick=st.integers(0, 100), image=st.sampled_from("12"))
    def rebuild(self, pick, image):
        if self.uuids:
            with contextlib.suppress(exception.Conflict, exception.NotFound, exception.InvalidInput):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], "rebuild", {"image": {"id": image}})

    @rule(pick=st.integers(0, 100), name=st.sampled_from([
        "resize", "migrate", "migrate", "confirm_resize", "revert_resize", "live_migrate", "live_migrate", "evacuate"]),
          flavor=st.sampled_from("12"))
    def move(self, pick, name, flavor):
        if self.uuids:
            request = {"flavor_id": flavor} if name == "resize" else {}
            with contextlib.suppress(exception.NovaException):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], name, request)

    @rule(pick=st.integers(0, 100), state=st.sampled_from([states.ACTIVE, states.ERROR]))
    def reset_state(self, pick, state):
        """Reset the state of a server as an administrator, during any operation."""
        if self.uuids and (server := self.row(self.uuids[pick % len(self.uuids)])).host and (
                server.vm_state in (states.ACTIVE, states.STOPPED, states.RESIZED)):
            with contextlib.suppress(exception.InstanceInvalidState):  # a delete in progress continues
                start(self.engine, CTX, server.uuid, "reset_state", {"state": state})
                self.reset.add(server.uuid)

    @rule(pick=st.integers(0, 100), name=st.sampled_from(["soft_delete", "soft_delete", "restore", "reclaim"]))
    def delete_for_now(self, pick, name):
        """Soft-delete, restore or reclaim the server."""
        if self.uuids:
            request = {"before": clock.after(60)} if name == "reclaim" else {}
            with contextlib.suppress(exception.Conflict, exception.NotFound, exception.OverQuota):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], name, request)

    @rule(pick=st.integers(0, 100), trouble=st.sampled_from([0.0, 0.5, 0.9]))
    def bind_outside(self, pick, trouble):
        """Bind an external resource with failures, or with a concurrent delete of the server."""
        if self.uuids:
            self.outside.trouble, self.outside.meanwhile = trouble, self.delete
            with contextlib.suppress(exception.Conflict, exception.NotFound):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], Bind.name, {})

    def delete(self, uuid):
        with contextlib.suppress(exception.Conflict, exception.NotFound):
            start(self.engine, CTX, uuid, "delete", {})

    @rule(pick=st.integers(0, 100), volume=st.integers(0, 3), name=st.sampled_from(["attach", "attach", "detach"]))
    def volumes_come_and_go(self, pick, volume, name):
        if self.uuids:
            while len(self.volumes) <= volume:
                self.volumes.append(self.make_volume())
            with contextlib.suppress(exception.Conflict, exception.NotFound, exception.InvalidVolume,
                                     exception.ServiceUnavailable):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], f"{name}_volume",
                      {"volume_id": self.volumes[volume]})

    @rule(pick=st.integers(0, 100), volume=st.integers(0, 3), other=st.integers(0, 3))
    def volumes_are_swapped(self, pick, volume, other):
        if self.uuids and len(self.volumes) > max(volume, other):
            with contextlib.suppress(exception.Conflict, exception.NotFound, exception.InvalidVolume):
                start(self.engine, CTX, self.uuids[pick % len(self.uuids)], "swap_volume",
                      {"volume_id": self.volumes[volume], "new_volume_id": self.volumes[other]})

    @rule(pick=st.integers(0, 100), which=st.integers(0, 3), name=st.sampled_from(["attach", "attach", "detach"]))
    def interfaces_come_and_go(self, pick, which, name):
        if self.uuids:
            uuid = self.uuids[pick % len(self.uuids)]
            server = self.row(uuid)
            request = {}
            if name == "detach":
                request["port_id"] = (([vif.id for vif in server.network_info] or ["none"]) * 4)[which]
            with contextlib.suppress(exception.Conflict, exception.NotFound):
                start(self.engine, CTX, uuid, f"{name}_interface", request)

    @rule(pick=st.integers(0, 100), which=st.integers(0, 3))
    def a_port_is_deleted(self, pick, which):
        """Report the deletion of a port once; the server loses the interface during any operation."""
        if self.uuids:
            server = self.row(self.uuids[pick % len(self.uuids)])
            if server.vm_state != states.BUILDING and server.network_info:
                vif = server.network_info[which % len(server.network_info)]
                process_network_events(
                    self.engine, [ExternalEvent(name="network-vif-deleted", instance_uuid=server.uuid, tag=vif.id)])

    def make_volume(self):
        made = Volume(uuid=new_uuid(), project_id="p", size_gb=1)
        return self.world.db.write(lambda connection: volumes.create(connection, made)).uuid

    @rule(kept=st.booleans(), gone=st.booleans())
    def boot_with_volumes(self, kept, gone):
        devices = [BlockDevice(source="blank", destination="volume", size_gb=1, delete_on_termination=gone)]
        if self.volumes and kept:
            devices.append(BlockDevice(source="volume", destination="volume", volume_id=self.volumes[0],
                                       delete_on_termination=False))
        with contextlib.suppress(exception.OverQuota, exception.QuotaLimit, exception.InvalidVolume):
            self.uuids += create.create(self.engine, CTX, ServerCreate(
                name="v", flavor_id="1", first_uuid=new_uuid(), block_devices=devices)).uuids

    @rule(pick=st.integers(0, 100), status=st.sampled_from(["completed", "completed", "failed"]))
    def interfaces_are_plugged(self, pick, status):
        if self.uuids:
            self.tell_plugged(self.uuids[pick % len(self.uuids)], status)

    def tell_plugged(self, uuid, status="completed"):
        keys = [event_key("network-vif-plugged", vif.id) for vif in self.row(uuid).network_info]
        self.engine.recovery.wake(uuid, dict.fromkeys(keys, status))

    # --- the world -------------------------------------------------------------------------------
    @rule(pick=st.integers(0, 100), twice=st.booleans(), fails=st.sampled_from([0.0, 0.0, 0.5]))
    def deliver_order(self, pick, twice, fails):
        if self.world.orders:
            host, order = self.world.orders.pop(pick % len(self.world.orders))
            if host in self.down:
                return
            for _time in range(1 + twice):
                self.execute(host, order, fails)

    @rule(pick=st.integers(0, 100), twice=st.booleans())
    def deliver_report(self, pick, twice):
        if self.reports:
            host, order, report = self.reports.pop(pick % len(self.reports))
            for _time in range(1 + twice):
                self.report(host, order, report)

    @rule(pick=st.integers(0, 100))
    def lose_order(self, pick):
        if self.world.orders:
            self.world.orders.pop(pick % len(self.world.orders))

    @rule(pick=st.integers(0, 100))
    def lose_report(self, pick):
        # Corresponds to a nova-compute that is killed after its step.
        if self.reports:
            self.reports.pop(pick % len(self.reports))

    @rule(host=st.sampled_from(HOSTS))
    def restart_host(self, host):
        self.seen[host].clear()
        self.hosts[host].state.serving.clear()  # state of the killed process
        self.evict(host)
        self.compare(host)
        for order in self.engine.recovery.resume(host):
            self.world.orders.append((host, order))

    @rule(host=st.sampled_from(HOSTS))
    def host_dies(self, host):
        if len(self.down) < 2:
            self.down.add(host)
            self.mark(host, forced_down=True)

    @rule()
    def hosts_return(self):
        for host in sorted(self.down):
            self.down.discard(host)
            self.restart_host(host)
            # Evacuated guests are removed before the host is marked up.
            self.mark(host, forced_down=False)

    def mark(self, host, forced_down):
        self.world.db.write(lambda connection: services.update(
            connection, services.uuid_of(connection, host, "nova-compute"), None, None, forced_down))

    @rule()
    def leases_end(self):
        self.engine.recovery.recover()

    # --- a host, as in nova.compute.runner -------------------------------------------------------
    def execute(self, host, order, fails):
        if self.seen[host].get(order.instance.uuid, (0, 0)) >= order.rank:
            return
        self.seen[host][order.instance.uuid] = order.rank
        try:
            # Leases expire at once, so every order is late.
            self.engine.recovery.begin(order.action.uuid, order.attempt, host)
        except exception.StaleReport:
            self.refused(host, order)
            return
        operation = REGISTRY[order.action.operation](order.instance, journal(order.action).data)
        where = StepContext.of(self.hosts[host], order, self.engine, CTX)
        report = StepReport(action_uuid=order.action.uuid, step=order.step, attempt=order.attempt, undo=order.undo,
                            host=host)
        for step in operation.batch(operation.step_named(order.step), order.undo):
            report.step = step.name
            try:
                operation.run(step, where, order.undo)
                if not order.undo and self.chance.random() < fails:
                    raise RuntimeError("bad luck")
            except Exception as error:
                report.failure = failure_of(error, host)
                break
        report.changes, report.results = where.changes, where.results
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=StepReport)
        self.reports.append((host, order, wire))

    def report(self, host, order, report):
        try:
            self.engine.step_done(CTX, report)
        except exception.StaleReport:
            self.refused(host, order)

    def deliver_all(self):
        """Execute orders and deliver reports without faults until none are left."""
        while self.world.orders or self.reports:
            while self.world.orders:
                self.execute(*self.world.orders.pop(0), fails=0.0)
            while self.reports:
                self.report(*self.reports.pop(0))

    def row(self, uuid=None):
        """Return the row of the server, deleted or not; by default of the first server."""
        return self.world.db.read(lambda connection: servers.get(connection, uuid or self.uuids[0], deleted=True))

    def refused(self, host, order):
        uuid = order.instance.uuid
        if self.seen[host].get(uuid, (0, 0)) > order.rank:
            return
        for where in Reports(self.world, self.engine).whereabouts(CTX, host, [uuid]):
            if where.must_leave:
                self.remove(host, where)
            elif host in where.possible_hosts and uuid in self.hosts[host].power_states:
                self.tell(host, uuid, late=True)

    def tell(self, host, uuid, late=False):
        Reports(self.world, self.engine).power_states(CTX, host, [
            GuestStatus(uuid=uuid, power_state=self.hosts[host].power_states.get(uuid, states.SHUTDOWN), late=late)])

    def compare(self, host):
        """Report guests whose power state differs from the row."""
        for guest in self.world.db.read(lambda connection: servers.expected(connection, host, 100, None)):
            if guest.settled and guest.power_state != self.hosts[host].power_states.get(guest.uuid, states.SHUTDOWN):
                self.tell(host, guest.uuid)

    def evict(self, host):
        """Evict guests as a host does at its start and periodically."""
        for guest in Reports(self.world, self.engine).evictions(CTX, host, 100, None):
            self.remove(host, guest)

    def remove(self, host, guest):
        self.hosts[host].guests.remove_orphan(guest.uuid, guest.keep_disks)
        self.hosts[host].plugged.discard(guest.uuid)
        Reports(self.world, self.engine).evicted(CTX, host, [guest.uuid],
                                                 {guest.uuid: guest.since} if guest.since else {})

    # --- invariants --------------------------------------------------------------------------------
    @invariant()
    def books_balance_at_every_moment(self):
        findings = list(audit.audit(self.world.db))
        assert not findings, [str(finding) for finding in findings]

    @invariant()
    def no_server_runs_on_two_hosts(self):
        """Check that no server runs on two hosts, except hosts that are down or have an eviction for it."""
        running = collections.defaultdict(set)
        for host, guests in self.hosts.items():
            for uuid, state in guests.power_states.items():
                if state == states.RUNNING and host not in self.down:
                    running[uuid].add(host)
        for uuid, hosts in running.items():
            if len(hosts) > 1:
                let_go = set(self.world.db.read(lambda connection, uuid=uuid: evictions.hosts(connection, uuid)))
                assert len(hosts - let_go) <= 1, f"{uuid} runs on {hosts}"

    @rule()
    def calm_down(self):
        self.calm()

    def calm(self, started=()):
        """End all faults and check that every server reaches a final, consistent state in bounded rounds."""
        self.hosts_return()
        self.outside.trouble = 0.0
        for _round in range(60):
            if (_round and not self.world.orders and not self.reports and not self.world.db.read(unfinished)
                    and not self.debts()):
                break
            self.deliver_all()
            for uuid in self.uuids:
                self.tell_plugged(uuid)
            self.engine.recovery.recover()
            for host in HOSTS:
                self.evict(host)
                self.compare(host)
        assert not self.world.db.read(unfinished)
        assert not self.world.db.read(open_events)
        assert not self.debts()
        assert self.outside.things == set(), "the external service has leftovers"
        where = {}
        for host, guests in self.hosts.items():
            places = self.world.db.read(lambda connection, guests=guests: servers.places(
                connection, list(guests.power_states) or ["none"]))
            for uuid in guests.power_states:
                assert host in places.get(uuid, ()), f"{uuid} runs on {host} but may exist on {places.get(uuid)}"
                assert uuid not in where, f"{uuid} runs on {where[uuid]} and {host}"
                where[uuid] = host
        moved_out = []
        for uuid in self.uuids:
            server = self.row(uuid)
            assert server.vm_state in FINAL
            assert server.task_state is None
            assert (server.soft_deleted_at is not None) == (server.vm_state == states.SOFT_DELETED)
            if server.vm_state in (states.STOPPED, states.SOFT_DELETED) and uuid not in where:
                # The host was lost during a move and still has the disks.
                assert self.hosts[server.host].disk(uuid, aside=True), f"{uuid} has no disks on {server.host}"
                assert uuid not in started, f"{uuid} was started but has no guest"
                moved_out.append(uuid)
            elif server.vm_state not in (states.ERROR, states.DELETED):
                assert where.get(uuid) == server.host, f"{uuid} is {server.vm_state} and has no guest on {server.host}"
                expected = POWER_STATES.get(server.vm_state, server.power_state)
                assert self.hosts[server.host].power_states[uuid] == server.power_state == expected
                assert self.hosts[server.host].attached_volumes[uuid] == {device.volume_id for device in server.volumes}
                assert self.hosts[server.host].attached_interfaces[uuid] == {vif.mac for vif in server.network_info}
                assert all(vif.active for vif in server.network_info)
            if server.vm_state == states.ERROR:
                assert server.fault is not None or uuid in self.reset
        self.volumes_are_where_they_belong()
        self.nothing_is_left_on_hosts()
        for uuid in moved_out:
            self.start_again(uuid)

    def debts(self):
        """Return the actions with deferred compensation in the external service."""
        return self.world.db.read(lambda connection: actions.due_cleanups(connection, clock.after(3600), 100))

    def start_again(self, uuid):
        """Start a server without a guest and check that the guest is created again."""
        again = "start" if self.row(uuid).vm_state == states.STOPPED else "restore"
        start(self.engine, CTX, uuid, again, {})
        self.calm({uuid})
        server = self.row(uuid)
        assert (server.vm_state, self.hosts[server.host].power_states[uuid]) == (states.ACTIVE, states.RUNNING)

    def nothing_is_left_on_hosts(self):
        """Check that disks exist only on possible hosts, and that only servers in VERIFY_RESIZE have two of those."""
        for host, guests in self.hosts.items():
            traces = guests.guests.traces()
            places = self.world.db.read(lambda connection, traces=traces: servers.places(
                connection, list(traces) or ["none"]))
            left = {uuid for uuid in traces if host not in places.get(uuid, ())}
            assert not left, f"{host} has disks of {left}"
            assert not guests.state.serving, f"{host} serves disks of {guests.state.serving}"
        for uuid in self.uuids:
            server = self.row(uuid)
            hosts = self.world.db.read(lambda connection, uuid=uuid: servers.places(connection, [uuid])).get(uuid, ())
            # A failed delete keeps both possible hosts of a server in VERIFY_RESIZE.
            most = 2 if server.vm_state in (states.RESIZED, states.ERROR) else 1
            assert len(hosts) <= most, f"{uuid} {server.vm_state}: {hosts}"

    def volumes_are_where_they_belong(self):
        """Check that no volume is attaching or detaching, and that guests have exactly their own volumes."""
        owners = {volume.uuid: volume for volume in self.world.db.read(volumes.index)}
        for volume in owners.values():
            assert volume.status in ("available", "in-use", "deleting"), volume
            assert (volume.status == "in-use") == (volume.instance_uuid is not None), volume
        for guests in self.hosts.values():
            for uuid, has in guests.attached_volumes.items():
                for volume in has:
                    assert owners[volume].instance_uuid == uuid, f"{uuid} has {owners[volume]}"


Machine.TestCase.settings = settings(
    max_examples=int(os.environ.get("NOVA_EXAMPLES", "15")), stateful_step_count=40, deadline=None,
    suppress_health_check=list(HealthCheck))
TestEngine = Machine.TestCase
