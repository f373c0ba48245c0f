"""What compute hosts report, and what they ask to compare themselves with."""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa

from nova import context, exception
from nova.conductor import fleet
from nova.conductor.core import Core
from nova.conductor.engine import Engine
from nova.conductor.start import start
from nova.db import fixed_ips, instances
from nova.objects import states
from nova.objects.compute import ComputeNode, ExpectedGuest, GuestStatus
from nova.objects.instance import Instance, StepOrder, StepReport

LOG = logging.getLogger(__name__)

_GONE = frozenset({states.SHUTDOWN, states.CRASHED, states.POWER_SUSPENDED})
_ON = frozenset({states.RUNNING, states.POWER_PAUSED, states.POWER_SUSPENDED})


def remedy(vm_state: str, power_state: int) -> str | None:
    """The operation that puts a guest right that is not as its server says."""
    if vm_state == states.ACTIVE and power_state in _GONE:
        return "stop"
    if vm_state == states.STOPPED and power_state in _ON:
        return "force_stop"
    if vm_state == states.PAUSED and power_state in (states.SHUTDOWN, states.CRASHED):
        return "force_stop"
    return None


class Guests:
    """Implements :class:`nova.rpcapi.engine.Guests`."""

    def __init__(self, core: Core, engine: Engine) -> None:
        self.core = core
        self.engine = engine

    def report_nodes(self, ctx: context.RequestContext, host: str, nodes: list[ComputeNode], after: str = "",
                     upto: str | None = None) -> list[ComputeNode]:
        return fleet.report_nodes(self.core, host, nodes, after, upto)

    def on_host(self, ctx: context.RequestContext, host: str, limit: int, marker: str | None) -> list[Instance]:
        return self.core.db.read(lambda connection: instances.on_host(connection, host, limit, marker))

    def expected(self, ctx: context.RequestContext, host: str, limit: int, marker: str | None) -> list[ExpectedGuest]:
        return self.core.db.read(lambda connection: instances.expected(connection, host, limit, marker))

    def power_states(self, ctx: context.RequestContext, host: str, guests: list[GuestStatus]) -> None:
        reported = {guest.uuid: guest.power_state for guest in guests}
        late = {guest.uuid for guest in guests if guest.late}

        def write(connection: sa.Connection) -> list[tuple[str, str]]:
            wrong = []
            for instance in instances.get_many(connection, list(reported)):
                power_state = reported[instance.uuid]
                if instance.host != host or instance.task_state is not None:
                    continue  # an operation that is under way reports by itself
                unknown = instance.power_state == states.NOSTATE or instance.uuid in late
                vm_state = states.as_the_guest(instance.vm_state, power_state) if unknown else None
                if vm_state:
                    # The host was given up in the middle of an operation: the server is as that left it.
                    instance.vm_state = vm_state
                    instances.update(connection, instance.uuid, {
                        "power_state": power_state, "vm_state": instance.vm_state})
                elif instance.power_state != power_state:
                    instances.update(connection, instance.uuid, {"power_state": power_state})
                operation = remedy(instance.vm_state, power_state)
                if operation:
                    wrong.append((instance.uuid, operation))
            return wrong

        for uuid, operation in self.core.db.write(write):
            LOG.info("[instance: %s] The guest changed by itself (power state %d): %s", uuid, reported[uuid],
                     operation)
            try:
                # On Nova's own account: a lock of the owner does not keep rows and guests apart.
                start(self.engine, context.admin(), uuid, operation, {})
            except exception.NovaException as error:
                LOG.info("[instance: %s] %s was not started: %s", uuid, operation, error)

    def known(self, ctx: context.RequestContext, uuids: list[str]) -> dict[str, str | None]:
        return self.core.db.read(lambda connection: instances.known(connection, uuids))

    def by_address(self, ctx: context.RequestContext, network_id: str, address: str) -> Instance:
        def look(connection: sa.Connection) -> Instance:
            uuid = fixed_ips.owner_of(connection, network_id, address)
            if uuid is None:
                raise exception.InstanceNotFound(instance_id=address)
            return instances.get(connection, uuid)

        return self.core.db.read(look)


class EngineReports:
    """Implements :class:`nova.rpcapi.engine.Engine`."""

    def __init__(self, engine: Engine, look: Callable[[], None]) -> None:
        self.engine = engine
        self._look = look

    def step_done(self, ctx: context.RequestContext, report: StepReport) -> None:
        self.engine.step_done(ctx, report)

    def progress(self, ctx: context.RequestContext, report: StepReport) -> None:
        self.engine.progress(ctx, report)

    def resume(self, ctx: context.RequestContext, host: str) -> list[StepOrder]:
        return self.engine.resume(ctx, host)

    def handed_over(self, ctx: context.RequestContext) -> None:
        self._look()
