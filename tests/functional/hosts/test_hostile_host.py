"""A compromised compute host uses all methods that its key permits."""

import contextlib
import datetime

import msgspec
import pytest
import sqlalchemy as sa

from nova import bus, context, exception
from nova.bus.interface import HOST_PARAMETER
from nova.bus.message_signing import Keys, set_keys
from nova.conf import CONF
from nova.db import tables, versions
from nova.db.networks import floating_ip_dns
from nova.objects.hosts.node import VCPU, ComputeNode, Inventory, Metric, Provider
from nova.objects.images.image_cache import CacheResult
from nova.objects.networks.network import Domain
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.order import StepReport
from nova.objects.volumes.volume import VolumeCounters, VolumeRemoval
from nova.rpcapi.by_hosts import Engine, Guests, Heartbeat, NetworkHosts
from nova.rpcapi.compute import Compute
from nova.rpcapi.servers import Servers
from nova.rpcapi.volumes import Volumes
from tests.functional.client import wait_for
from tests.functional.listening import listen
from tests.functional.several_hosts import SECOND, Held, newest_action
from tests.unit.test_wire_schema import interfaces

METHODS = {f"{declared.namespace}.{name}": (declared, method)
           for declared in interfaces() for name, method in declared.methods().items()}
FOR_HOSTS = sorted(name for name, (_declared, method) in METHODS.items() if method.by_hosts)
FOR_CONTROL = sorted(METHODS.keys() - set(FOR_HOSTS))
CTX = context.admin()
SECRET = "I2Nsb3VkLWNvbmZpZwo="


def sample(kind):
    """Return a minimal value of a type with only the required fields."""
    match msgspec.inspect.type_info(kind) if not isinstance(kind, msgspec.inspect.Type) else kind:
        case msgspec.inspect.StructType() as struct:
            return {field.encode_name: sample(field.type) for field in struct.fields if field.required}
        case msgspec.inspect.UnionType(types=types):
            return None if any(isinstance(each, msgspec.inspect.NoneType) for each in types) else sample(types[0])
        case msgspec.inspect.ListType():
            return []
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.DateTimeType():
            return datetime.datetime.now(datetime.UTC).isoformat()
        case _:
            return "x"


def said(name, host=SECOND, **chosen):
    """Return valid arguments for a method, as a caller on ``host`` would send them."""
    args_type = METHODS[name][1].args_type
    filled = msgspec.convert(sample(args_type), args_type)
    values = {field: getattr(filled, field) for field in args_type.__struct_fields__}
    return {**values, **({HOST_PARAMETER: host} if HOST_PARAMETER in values else {}), **chosen}


class Evil:
    """An attacker who controls the host SECOND, with its key and a broker account."""

    def __init__(self, suite, victim):
        self.transport = bus.connect(CONF, SECOND)
        self.db = suite.conductor.core.db
        self.victim = victim
        self.suite = suite

    def proxy(self, declared, host=SECOND):
        """Return a client of the attacker, or of another host that it impersonates."""
        made = bus.client(self.transport if host == SECOND else bus.connect(CONF, host), declared)
        return bus.at(made, CONF.host) if declared.on_hosts else made

    def call(self, name, **chosen):
        declared, method = METHODS[name]
        return getattr(self.proxy(declared), method.name)(CTX, **said(name, **chosen))

    def rows(self):
        """Return the rows that the attacker tries to change."""
        named = (tables.instances, tables.precached_images, tables.compute_nodes, tables.providers, tables.inventories,
                 tables.allocations, tables.volume_removals, tables.evictions, tables.network_hosts, tables.migrations)

        def texts(connection, table, *columns):
            # As stored: decoding the rows of all deleted servers takes long, and str() of a decoded row cuts values.
            columns = sa.text(", ".join(columns) or "*")
            return sorted(map(repr, map(tuple, connection.execute(sa.select(columns).select_from(table)))))

        def look(connection):
            found = {table.name: texts(connection, table) for table in named}
            found["actions"] = texts(connection, tables.actions, *(
                column.name for column in tables.actions.c if column.name not in ("lease_until", "updated_at")))
            found["services"] = texts(connection, tables.services, "host", "binary", "up", "disabled", "connector")
            return found

        return self.db.read(look)


@pytest.fixture
def evil(suite, admin, second, flavor, image_id):
    victim = admin.boot(flavor, image_id, availability_zone=f"nova:{CONF.host}", user_data=SECRET)
    admin.wait(victim, "ACTIVE")
    made = Evil(suite, victim)
    yield made
    made.transport.cleanup()


def refusals(caplog):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("Refused a message: ")]


def test_host_cannot_call_control_plane_methods(evil, caplog):
    """Check all control plane methods: orders to other hosts, and calls of schedulers, API services and operators."""
    before = evil.rows()
    for name in FOR_CONTROL:
        try:
            evil.call(name)
        except exception.CallerRefused:
            continue
        assert METHODS[name][1].kind != "call", name
        wait_for(lambda: any(name in line for line in refusals(caplog)), reason=f"{name} is refused")  # noqa: B023
    assert evil.rows() == before


def test_host_cannot_act_for_another_host(evil):
    before = evil.rows()
    for name in FOR_HOSTS:
        if HOST_PARAMETER in METHODS[name][1].parameters:
            with pytest.raises(exception.CallerRefused, match=f"must not act for host {CONF.host}"):
                evil.call(name, host=CONF.host)
    assert evil.rows() == before


def test_caller_without_a_key_is_refused(evil):
    for keys in (Keys(), Keys(b"guessed" * 8, SECOND), Keys(b"guessed" * 8)):
        set_keys(evil.transport, keys)
        for name in ("servers.index", "guests.on_host", "fleet.page"):
            with pytest.raises(exception.CallerRefused):
                evil.call(name)


def test_host_message_size_is_limited(evil):
    """Check a limit besides that of the broker: a small compressed message may expand a thousandfold."""
    guests = [GuestStatus(uuid="x" * 1000, power_state=1)] * 3000
    with pytest.raises(exception.InvalidInput, match="max_host_message_size"):
        evil.proxy(Guests).power_states(CTX, SECOND, guests)


# --- permitted methods with arguments of other hosts ---------------------------------------------------
def _whoever_owns(evil, uuid):
    found = evil.db.read(lambda connection: connection.execute(
        tables.actions.select().where(tables.actions.c.instance_uuid == uuid, tables.actions.c.outcome.is_(None))))
    return found.first()


def report_the_end(evil):
    action = _whoever_owns(evil, evil.victim)
    for host in (SECOND, CONF.host, ""):
        with pytest.raises(exception.StaleReport):
            evil.proxy(Engine).step_done(CTX, StepReport(
                action_uuid=action.uuid, step=action.step, attempt=action.attempt, host=host,
                changes={"vm_state": "error", "user_data": "c3RvbGVu"}))


def report_progress(evil):
    action = _whoever_owns(evil, evil.victim)
    evil.proxy(Engine).progress(CTX, StepReport(
        action_uuid=action.uuid, step=action.step, attempt=action.attempt, host=CONF.host, final=False,
        changes={"host": SECOND, "power_state": 4}))


def renew_a_lease(evil):
    action = _whoever_owns(evil, evil.victim)
    with pytest.raises(exception.StaleReport):
        evil.proxy(Engine).begin(CTX, action.uuid, action.attempt, SECOND)
    assert evil.proxy(Heartbeat).beat(CTX, SECOND, "nova-compute", [action.uuid]) == [action.uuid]


def beat_for_others(evil):
    for running in ({CONF.host: []}, {CONF.host: [], SECOND: []}):
        with pytest.raises(exception.CallerRefused):
            evil.proxy(Heartbeat).beat_all(CTX, "nova-compute", running)


def register_as_a_control_service(evil):
    for binary, topic in (("nova-conductor", "conductor"), ("nova-scheduler", "scheduler"),
                          ("nova-conductor", "compute"), ("nova-compute", "conductor")):
        with pytest.raises(exception.CallerRefused):
            evil.proxy(Heartbeat).register(CTX, SECOND, binary, topic, 1)
    for beat in (lambda heart: heart.beat(CTX, SECOND, "nova-conductor", []),
                 lambda heart: heart.beat_all(CTX, "nova-conductor", {SECOND: []})):
        with pytest.raises(exception.CallerRefused):
            beat(evil.proxy(Heartbeat))


def nodes_of_others(evil):
    stolen = evil.db.read(lambda connection: connection.execute(
        tables.compute_nodes.select().where(tables.compute_nodes.c.host == CONF.host))).first()
    for name, refusal in ((stolen.hypervisor_hostname, exception.NodeOfAnotherHost), ("mine", exception.InvalidInput)):
        with pytest.raises(refusal):
            evil.proxy(Guests).report_nodes(CTX, SECOND, [ComputeNode(
                uuid=stolen.uuid, host=CONF.host, hypervisor_hostname=name, hypervisor_type="x",
                hypervisor_version=1, provider=Provider(uuid=stolen.uuid, name=name, inventories={
                    VCPU: Inventory(total=1)}))])
    with pytest.raises(exception.InvalidInput, match="belongs to another host"):
        evil.proxy(Guests).report_nodes(CTX, SECOND, [ComputeNode(
            host=SECOND, hypervisor_hostname="mine", hypervisor_type="x", hypervisor_version=1,
            provider=Provider(uuid="", name="mine"), children=[Provider(uuid=stolen.uuid, name="mine")])],
            "ffffffff", "ffffffff-")


def read_servers(evil):
    assert evil.proxy(Guests).on_host(CTX, SECOND) == []
    assert evil.proxy(Guests).expected(CTX, SECOND) == []
    assert evil.proxy(Guests).described(CTX, [evil.victim]) == []
    with pytest.raises(exception.InstanceNotFound):
        evil.proxy(Servers).get(CTX, evil.victim)


def read_by_address(evil):
    evil.db.write(lambda connection: connection.execute(tables.fixed_ips.insert().values(
        network_uuid="n", address="10.9.9.9", instance_uuid=evil.victim)))
    try:
        with pytest.raises(exception.InstanceNotFound):
            evil.proxy(Guests).by_address(CTX, "n", "10.9.9.9")
    finally:
        evil.db.write(lambda connection: connection.execute(tables.fixed_ips.delete()))


def where_others_are(evil):
    [where] = evil.proxy(Guests).whereabouts(CTX, SECOND, [evil.victim])
    assert (where.possible_hosts, where.must_leave) == ([], False)
    assert evil.proxy(Guests).evictions(CTX, SECOND) == []


def power_states_of_others(evil):
    for late in (False, True):
        evil.proxy(Guests).power_states(CTX, SECOND, [GuestStatus(uuid=evil.victim, power_state=4, late=late)])


def evicted_elsewhere(evil):
    """Evict the victim from its own host, which has not removed it yet."""
    now = datetime.datetime.now(datetime.UTC)
    evil.db.write(lambda connection: connection.execute(tables.evictions.insert().values(
        instance_uuid=evil.victim, host=CONF.host, keep_disks=False, created_at=now)))
    before = evil.rows()
    try:
        for since in (None, {}, {evil.victim: now}):
            evil.proxy(Guests).evicted(CTX, SECOND, [evil.victim], since)
        assert evil.rows() == before
    finally:
        evil.db.write(lambda connection: connection.execute(
            tables.evictions.delete().where(tables.evictions.c.instance_uuid == evil.victim)))


def evacuated_elsewhere(evil):
    """Evacuate the victim: leftovers on its former host are removed when that host reports."""
    now = datetime.datetime.now(datetime.UTC)
    evil.db.write(lambda connection: connection.execute(tables.migrations.insert().values(
        uuid="m", instance_uuid=evil.victim, migration_type="evacuation", status="done", open=False, shared=False,
        source_compute=CONF.host, source_node="", dest_compute="elsewhere", dest_node="", dest_host="", user_id="u",
        project_id="p", created_at=now, updated_at=now)))
    before = evil.rows()
    try:
        evil.proxy(Guests).evicted(CTX, SECOND, [evil.victim])
        assert evil.rows() == before
    finally:
        evil.db.write(lambda connection: connection.execute(
            tables.migrations.delete().where(tables.migrations.c.uuid == "m")))


def start_others(evil):
    told = evil.proxy(Guests).resume(CTX, SECOND, [evil.victim], [evil.victim], 1)
    assert (told.waiting, told.begun) == ([], [])


def cache_for_others(evil):
    result = CacheResult(image_id="i", state="cached")
    evil.proxy(Guests).images_cached(CTX, SECOND, [result])
    with pytest.raises(exception.InvalidInput):
        evil.proxy(Guests).images_cached(CTX, SECOND, [CacheResult(image_id="i", state="waiting")])


def counters_of_others(evil):
    counted = VolumeCounters(instance_uuid=evil.victim, volume_id="v", reads=1, read_bytes=1, writes=1, write_bytes=1)
    with listen(evil.suite) as listener:
        evil.proxy(Guests).volumes_used(CTX, SECOND, [counted])
        evil.proxy(Guests).hypervisor_lost(CTX, SECOND, "192.0.2.1", Failure(message="x" * 100_000))
        wait_for(lambda: listener.versioned, reason="the report of the host about itself is published")
        [message] = listener.versioned
        assert (message["event_type"], message["publisher_id"]) == ("libvirt.connect.error", f"nova-compute:{SECOND}")
        assert len(str(message)) < 20_000


def post_a_password(evil):
    with pytest.raises(exception.InstanceNotFound):
        evil.proxy(Guests).set_password(CTX, evil.victim, {"password_0": "mine"})


def orders_of_others(evil):
    assert evil.proxy(Engine).resume(CTX, SECOND) == []


def rules_of_others(evil):
    evil.db.write(lambda connection: versions.bump(connection, versions.rules("p")))  # The request has content.
    for grouped in (True, False):
        assert evil.proxy(NetworkHosts).rules(CTX, {evil.victim: -1}, grouped) == {}
    assert [*evil.proxy(NetworkHosts, CONF.host).rules(CTX, {evil.victim: -1})] == [evil.victim]


def join_a_network(evil):
    made = tables.networks.insert().values(
        uuid="tenant", label="tenant", cidr="10.8.0.0/24", gateway="10.8.0.1", dns=[], mtu=1450, bridge="br-tenant",
        vni=77, next_offset=2, project_id="other", created_at=datetime.datetime.now(datetime.UTC))
    evil.db.write(lambda connection: connection.execute(made))
    try:
        assert evil.proxy(NetworkHosts).present(CTX, SECOND, "192.0.2.6", {"tenant": -1}) == []
    finally:
        evil.db.write(lambda connection: connection.execute(
            tables.networks.delete().where(tables.networks.c.uuid == "tenant")))


def names_of_other_zones(evil):
    """Request names as another host, or with a version of a domain of another zone."""
    zone, other = (Domain(domain=f"{name}.test", scope="private", availability_zone=name)
                   for name in ("nova", "elsewhere"))
    for domain in (zone, other):
        evil.db.write(lambda connection, domain=domain: floating_ip_dns.put_domain(connection, domain))
    try:
        with pytest.raises(exception.CallerRefused):
            evil.proxy(NetworkHosts).names(CTX, CONF.host, {})
        told = evil.proxy(NetworkHosts).names(CTX, SECOND, {"elsewhere.test": 1})
        assert {each.domain: each.removed for each in told} == {"nova.test": False, "elsewhere.test": True}
    finally:
        for domain in (zone, other):
            evil.db.write(lambda connection, domain=domain: floating_ip_dns.delete_domain(connection, domain.domain))


def remove_volumes_of_others(evil):
    with pytest.raises(exception.CallerRefused):
        evil.proxy(Volumes).removed(CTX, [VolumeRemoval(volume_uuid="v", generation=1, host=CONF.host)])


def take_nodes_over(evil, *_):
    """Claim to share bare metal nodes, to get those of other hosts with their servers."""
    nodes = [str(uuid) for uuid in evil.db.read(lambda connection: list(connection.scalars(
        tables.compute_nodes.select().with_only_columns(tables.compute_nodes.c.uuid))))]
    assert nodes
    for host in (SECOND, CONF.host):
        with pytest.raises(exception.CallerRefused):
            evil.call("guests.share_nodes", host=host, uuids=nodes)


ATTACKS = {
    "engine.step_done": report_the_end, "engine.progress": report_progress, "engine.begin": renew_a_lease,
    "engine.resume": orders_of_others, "heartbeat.beat": renew_a_lease, "heartbeat.beat_all": beat_for_others,
    "heartbeat.register": register_as_a_control_service, "guests.report_nodes": nodes_of_others,
    "guests.share_nodes": take_nodes_over,
    "guests.on_host": read_servers, "guests.expected": read_servers, "guests.described": read_servers,
    "servers.get": read_servers, "guests.by_address": read_by_address, "guests.whereabouts": where_others_are,
    "guests.evictions": where_others_are, "guests.power_states": power_states_of_others,
    "guests.volumes_used": counters_of_others, "guests.hypervisor_lost": counters_of_others,
    "guests.images_cached": cache_for_others, "guests.resume": start_others,
    "guests.evicted": evicted_elsewhere, "guests.set_password": post_a_password,
    "network_hosts.rules": rules_of_others, "network_hosts.present": join_a_network,
    "network_hosts.names": names_of_other_zones,
    "volumes.removed": remove_volumes_of_others,
}


def test_all_host_methods_are_covered_by_attacks():
    assert sorted(ATTACKS) == FOR_HOSTS


@pytest.fixture
def long_leases():
    """Leases that do not expire on a busy machine, where a recovery would change the rows of actions."""
    usual = CONF.conductor.lease
    CONF.set_override("lease", 60, group="conductor")
    yield
    CONF.set_override("lease", usual, group="conductor")


@pytest.mark.usefixtures("long_leases")
def test_host_cannot_read_or_change_data_of_another_host(admin, evil, hold):
    held = hold("power.off")
    admin.action(evil.victim, "os-stop")
    wait_for(lambda: held.calls)
    wait_for(lambda: not evil.rows()["evictions"], 60, reason="evictions of earlier tests are processed")
    for attack in dict.fromkeys(ATTACKS.values()):
        before = evil.rows()
        attack(evil)
        assert evil.rows() == before, attack.__name__
    held.let_go()
    admin.wait(evil.victim, "SHUTOFF")  # The host of the server continues.


@pytest.mark.parametrize("attack", [power_states_of_others, evicted_elsewhere, evacuated_elsewhere, start_others])
def test_host_cannot_change_idle_servers_of_another_host(evil, attack):
    before = evil.rows()
    attack(evil)
    assert evil.rows() == before


def test_host_cannot_take_an_unused_node_of_another_host(admin, evil):
    admin.delete(f"/servers/{evil.victim}")
    admin.wait_gone(evil.victim)
    before = evil.rows()
    nodes_of_others(evil)
    assert evil.rows() == before


@contextlib.contextmanager
def counted_volume(admin, evil):
    """Report usage of a volume that the victim has attached meanwhile."""
    volume = admin.post("/os-volumes", {"volume": {"size": 1}}, version="2.1")["volume"]["id"]
    path = f"/servers/{evil.victim}/os-volume_attachments"
    admin.post(path, {"volumeAttachment": {"volumeId": volume}})
    wait_for(lambda: admin.get(path)["volumeAttachments"], reason="the volume is attached")
    admin.wait(evil.victim, "ACTIVE")
    counted = VolumeCounters(instance_uuid=evil.victim, volume_id=volume, reads=1, read_bytes=1, writes=1,
                             write_bytes=1)
    try:
        yield counted
    finally:
        admin.delete(f"/servers/{evil.victim}")
        admin.wait_gone(evil.victim)
        admin.call("DELETE", f"/os-volumes/{volume}", version="2.1")
        # A removal that a busy host missed is sent again after [volume]removal_interval, 30 s.
        wait_for(lambda: not admin.get("/os-volumes", version="2.1")["volumes"], 60,
                 reason=lambda: f"volumes are deleted: {admin.get('/os-volumes', version='2.1')['volumes']}")


def test_host_cannot_report_volume_usage_for_another_host(admin, evil):
    with counted_volume(admin, evil) as counted, listen(evil.suite) as listener:
        for host in (SECOND, CONF.host):  # The last report is valid, and is processed after all earlier ones.
            evil.proxy(Guests, host).volumes_used(CTX, host, [counted])
        wait_for(lambda: listener.versioned, reason="the report of the server's own host is published")
        [message] = listener.versioned
        assert (message["event_type"], message["publisher_id"]) == ("volume.usage", f"nova-compute:{CONF.host}")


def test_host_metrics_are_validated(evil):
    """Check values that affect scheduling and notifications."""
    now = datetime.datetime.now(datetime.UTC)
    own = evil.db.read(lambda connection: connection.execute(
        tables.compute_nodes.select().where(tables.compute_nodes.c.host == SECOND))).first()
    before = evil.rows()
    with listen(evil.suite) as listener:
        for name, value, when, times in (("cpu.percent", -(10**6), now, 1), ("cpu.percent", 1 << 63, now, 1),
                                         ("x" * 100_000, 1, now, 1), ("n", 1, now.replace(tzinfo=None), 1),
                                         ("n", 1, now.replace(year=1), 1), ("n", 1, now, 101)):
            with pytest.raises(exception.InvalidInput, match="metric"):
                evil.proxy(Guests).report_nodes(CTX, SECOND, [ComputeNode(
                    uuid=own.uuid, host=SECOND, hypervisor_hostname=own.hypervisor_hostname, hypervisor_type="fake",
                    hypervisor_version=1000, provider=Provider(uuid=own.uuid, name=SECOND),
                    metrics=[Metric(name=name, value=value, timestamp=when)] * times)])
        evil.proxy(Guests).hypervisor_lost(CTX, SECOND, "192.0.2.1", Failure(message="reported after all others"))
        wait_for(lambda: listener.versioned, reason="the last report is published")
        assert [message["event_type"] for message in listener.versioned] == ["libvirt.connect.error"]
    assert evil.rows() == before


# --- reports of a host about itself --------------------------------------------------------------------
def test_step_report_changes_only_declared_fields(suite, admin, second, flavor, image_id, monkeypatch):
    """A host cannot give its server to another project, change its flavor, or make it free of charge by a report of its
    own order."""
    real = second.runner._report

    def report(job, told):
        told.changes |= {"project_id": "other", "flavor": {"flavorid": "x", "name": "x", "memory_mb": 1, "vcpus": 1},
                         "host": CONF.host, "vm_state": "deleted", "deleted": True, "launched_at": None}
        told.results |= {"host": CONF.host, "candidates": [], "tries": -5, "selected": False}
        real(job, told)

    monkeypatch.setattr(second.runner, "_report", report)
    uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
    shown = admin.wait(uuid, "ACTIVE")
    assert (shown["OS-EXT-SRV-ATTR:host"], shown["tenant_id"], shown["flavor"]["vcpus"]) == (SECOND, "p", 1)
    assert shown["OS-SRV-USG:launched_at"]


def test_failure_report_size_is_limited(suite, admin, second, flavor, image_id, monkeypatch):
    """Check the limit, since lists load the failures of a thousand servers into memory at a time."""
    real = second.runner._report

    def report(job, told):
        told.failure = {"code": -(1 << 40), "message": "m\0" * 500_000, "kind": "k" * 100_000, "inside": "i" * 100_000,
                        "details": "d" * 100_000 + "the end", "retry": False}
        real(job, told)

    monkeypatch.setattr(second.runner, "_report", report)
    uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
    fault = admin.wait(uuid, "ERROR")["fault"]
    assert fault["code"] == 500
    assert fault["message"].startswith("m?m?")
    assert fault["details"].endswith("the end")
    assert len(str(fault)) < 40_000
    for action in admin.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"]:
        shown = admin.get(f"/servers/{uuid}/os-instance-actions/{action['request_id']}")
        assert len(str(shown)) < 200_000


def test_user_and_project_of_an_action_ignore_host_reports(suite, admin, second, flavor, image_id, hold, monkeypatch):
    uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    told = Held(second.machine.driver.power, "off", monkeypatch)
    evil = Evil(suite, uuid)
    forged = context.RequestContext(overwrite=False, user_id="forged", project_id="forged", roles=["admin"])
    with listen(suite) as listener:
        admin.action(uuid, "os-stop")
        told.wait_until_begun()
        action = _whoever_owns(evil, uuid)
        evil.proxy(Engine).step_done(forged, StepReport(
            action_uuid=action.uuid, step=action.step, attempt=action.attempt, host=SECOND,
            changes={"power_state": 4}))
        ended = listener.wait(uuid, "power_off.end")
        told.let_go()
    assert (ended["action_initiator_user"], ended["action_initiator_project"]) == (
        action.user_id, action.project_id)
    evil.transport.cleanup()


@pytest.mark.parametrize("state", [99, -1, 1 << 40])
def test_invalid_power_state_reports_are_refused(suite, admin, second, flavor, image_id, evil, state, monkeypatch):
    uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
    admin.wait(uuid, "ACTIVE")
    evil.proxy(Guests).power_states(CTX, SECOND, [GuestStatus(uuid=uuid, power_state=state)])
    assert admin.server(uuid)["OS-EXT-STS:power_state"] == 1
    real = second.runner._report

    def report(job, told):
        told.changes["power_state"] = state
        real(job, told)

    with monkeypatch.context() as patch:
        patch.setattr(second.runner, "_report", report)
        admin.action(uuid, "os-stop")
        wait_for(lambda: newest_action(admin, uuid, "stop")["message"] == "Error", 60)
    assert admin.server(uuid)["OS-EXT-STS:power_state"] == 1


def test_host_cannot_report_a_step_that_it_was_not_ordered(suite, admin, pair, hold):
    """Check that the source of a move cannot report steps of the destination or the conductor."""
    uuid = pair.boot()
    held = hold("power.off")
    admin.action(uuid, "os-stop")
    wait_for(lambda: held.calls)
    action = suite.conductor.core.db.read(lambda connection: connection.execute(tables.actions.select().where(
        tables.actions.c.instance_uuid == uuid, tables.actions.c.outcome.is_(None))).first())
    engine = bus.client(bus.connect(CONF, CONF.host), Engine)
    for step, undo in (("power_on", False), (action.step, True), ("", False)):
        with pytest.raises(exception.StaleReport):
            engine.step_done(CTX, StepReport(action_uuid=action.uuid, step=step, attempt=action.attempt, undo=undo,
                                             host=CONF.host, failure=msgspec.to_builtins(Failure(message="no"))))
    held.let_go()
    admin.wait(uuid, "SHUTOFF")


def test_compute_accepts_orders_from_the_control_plane_only(suite):
    """Check that the owner of a host key cannot send orders, not even to the host itself."""
    own = bus.connect(CONF, CONF.host)
    with pytest.raises(exception.CallerRefused, match="not for hosts"):
        bus.at(bus.client(own, Compute), CONF.host).guests(CTX)
    assert isinstance(bus.at(bus.client(suite.transport, Compute), CONF.host).guests(CTX), list)
    own.cleanup()
