"""Environment of the engine in property tests: scheduler, allocator, hosts, and an external service."""

import contextlib
import threading

import msgspec

from nova import exception
from nova.compute.host import Machine as HostMachine
from nova.compute.host import StepHost
from nova.conductor.core import Core
from nova.db.hosts import compute_nodes
from nova.objects.base import Object
from nova.objects.hosts.scheduling import Selection
from nova.objects.servers import states
from nova.objects.servers.order import StepReport
from nova.operations.framework.base import CONDUCTOR, VOLUMES, Operation, step
from nova.operations.framework.rules import Rules
from nova.virt.fake.driver import FakeDriver


class World(Core):
    """A core that appends orders to hosts to the list ``orders``."""

    def compute_at(self, host):
        world = self

        class At:
            def run(self, ctx, order):
                world.orders.append((host, msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=type(order))))

        return At()


class Quiet:
    """A recipient that ignores every call."""

    def __getattr__(self, _name):
        return lambda *_args, **_kwargs: None


def awaiting_plugs(allocate, chance):
    """Return an allocation function in which some interfaces wait for a plug event."""
    def allocated(connection, instance, wanted):
        return [msgspec.structs.replace(vif, active=False, awaits_plug=True) if chance.random() < 0.3 else vif
                for vif in allocate(connection, instance, wanted)]

    return allocated


class Scheduler:
    """A scheduler that selects hosts in random order."""

    def __init__(self, world, chance):
        self.world, self.chance = world, chance

    def select(self, ctx, spec):
        nodes = self.world.db.read(lambda connection: compute_nodes.states(connection, None, 100))
        usable = [node for node in nodes if node.host not in spec.ignore_hosts and node.node not in spec.ignore_nodes]
        if not usable:
            raise exception.NoValidHost(reason="none left")
        found = []
        for _uuid in spec.instance_uuids:
            self.chance.shuffle(usable)
            found.append([Selection(node_uuid=node.node_uuid, host=node.host, node=node.node)
                          for node in usable[:1 + spec.alternates]])
        return found


class Guests(FakeDriver):
    """The hypervisor and network of a host; ``plugged`` are the guests with plugged interfaces."""

    def __init__(self, host):
        super().__init__(host)
        self.plugged = set()

    @property
    def power_states(self):
        """Return the power state by uuid of the guests on this host."""
        return {guest.uuid: guest.power_state for guest in self.guests.all()}

    @property
    def attached_volumes(self):
        """Return the attached volumes by uuid of the guest."""
        return {uuid: {volume for _device, volume in self.guest(uuid).volumes} for uuid in self.power_states}

    @property
    def attached_interfaces(self):
        return {uuid: set(self.guest(uuid).interfaces) for uuid in self.power_states}

    def plug(self, instance, rules):
        self.plugged.add(instance.uuid)

    def unplug(self, instance):
        self.plugged.discard(instance.uuid)

    def plug_vif(self, instance, vif, rules):
        self.plugged.add(instance.uuid)

    def unplug_vif(self, instance, vif):
        pass

    def prepare_network(self, instance, rules):
        pass


class Volumes:
    """The volume driver of a host; every request succeeds."""

    def connect(self, info, fetch=None, key=None):
        assert info["volume_id"]

    def disconnect(self, info):
        pass


class StepContext(StepHost):
    """The context of a step on a host, with synchronous progress reports."""

    def __init__(self, guests, order, tell):
        self.machine = HostMachine(guests.host, guests, guests, None, None, Volumes())
        self.ctx = None
        self.instance, self.rules = order.instance, order.rules
        self.cancelled = threading.Event()
        self.driver = self.network = guests
        self.volumes, self.shares = self.machine.volumes, self.machine.shares
        self.shutdown_timeout = 0
        self.image_shutdown_timeout = None
        self.changes, self.results = {}, {}
        self._tell = tell

    def progress(self, percent, **values):
        self._tell({"progress": percent}, msgspec.to_builtins(values))

    @classmethod
    def of(cls, guests, order, engine, ctx):
        def tell(changes, values):
            with contextlib.suppress(exception.StaleReport):
                engine.progress(ctx, StepReport(
                    action_uuid=order.action.uuid, step=order.step, attempt=order.attempt, undo=order.undo,
                    final=False, host=guests.host, changes=changes, results=values))

        return cls(guests, order, tell)


# --- external service ----------------------------------------------------------------------------------
class Outside:
    """A service that creates and removes things with client-chosen ids, and may report an error after the effect.

    ``trouble`` is the fraction of calls that fail, before or after their effect. ``meanwhile(uuid)`` is called at
    random during a call, before or after its effect.
    """

    def __init__(self, chance):
        self.chance = chance
        self.things = set()
        self.trouble = 0.0
        self._busy = False
        self.meanwhile = lambda uuid: None

    def make(self, uuid):
        """Create the thing (idempotent). Raise ServiceUnavailable or RuntimeError, possibly after the effect."""
        self._call(uuid, lambda: self.things.add(uuid), exception.ServiceUnavailable("outside"), RuntimeError("500"))

    def remove(self, uuid):
        """Remove the thing (idempotent). Raise ServiceUnavailable, possibly after the effect."""
        self._call(uuid, lambda: self.things.discard(uuid), exception.ServiceUnavailable("outside"))

    def _call(self, uuid, effect, *errors):
        luck = self.chance.random() if not self._busy else 0.5
        if luck < self.trouble / 3:
            raise self.chance.choice(errors)
        if luck > 1 - self.trouble / 3:
            self._somebody_else(uuid)  # the effect is delayed
        effect()
        if luck < self.trouble * 2 / 3 or luck > 1 - self.trouble / 6:
            raise self.chance.choice(errors)
        if 1 - self.trouble * 2 / 3 < luck < 1 - self.trouble / 3:
            self._somebody_else(uuid)

    def _somebody_else(self, uuid):
        self._busy = True
        try:
            self.meanwhile(uuid)
        finally:
            self._busy = False


class Bind(Operation):
    """An operation that creates an external resource, uses it on the host, and removes it."""

    name = action = "bind_outside"
    rules = Rules(label="bind", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED}))
    task_state = "binding"
    # The external service of the machine under test.
    outside: Outside

    class Data(Object, kw_only=True):
        host: str = ""

    data_type = Data

    @step(CONDUCTOR, undo="unbind", external=VOLUMES)
    def bind(self, ctl):
        self.outside.make(self.instance.uuid)

    @step("host", undo="leave")
    def use(self, host):
        host.driver.guests.power_state(self.instance.uuid)

    @step(CONDUCTOR, external=VOLUMES)
    def release(self, ctl):
        self.outside.remove(self.instance.uuid)

    def leave(self, host):
        pass

    def unbind(self, ctl):
        self.outside.remove(self.instance.uuid)
