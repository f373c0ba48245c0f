"""Evacuate: a server of a host that is down goes on on another one, from its shared disks or from its image.

place (conductor) → look (destination) → found (conductor) → network, disks, start (destination), and where the network
back end tells when interfaces are plugged → plugged (conductor) → go (destination). From the moment in which the
destination may run the guest the source may not: an eviction tells it so when it returns.
"""

from __future__ import annotations

import msgspec

from nova import exception
from nova.objects import migration as moves
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import Instance
from nova.operations import on_host, plugging
from nova.operations.base import CONDUCTOR, NETWORK, VOLUMES, Rules, connects_volumes, step
from nova.operations.contexts import Acceptance, Control, Host
from nova.operations.moves import Move, MoveData

_EVENT = "compute_rebuild_instance"


class EvacuateRequest(Object, kw_only=True):
    """``stay_off``: the server is stopped afterwards, whatever it was (API 2.95); ``force``: skip the filters."""

    host: str | None = None
    admin_pass: str | None = None
    force: bool = False
    stay_off: bool = False


class EvacuateData(MoveData, kw_only=True):
    """``shared``: the destination found the server's disks."""

    off: bool = False
    shared: bool = False


class Evacuate(Move):
    name = action = "evacuate"
    rules = Rules(label="evacuate", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.ERROR}),
                  without_shares=True, task_states=None, lock=False, preempts=True,
                  # A soft delete was promised as well; without its host it is done soon.
                  yields_to=frozenset({states.DELETING, states.SOFT_DELETING}))
    request_type = EvacuateRequest
    data_type = EvacuateData
    task_state = states.REBUILDING
    migration_type = moves.EVACUATION
    kind = "build"

    @classmethod
    def begin(cls, instance: Instance, request: EvacuateRequest) -> dict[str, object]:
        return {"spec": {"instance_uuids": [], "project_id": "", "flavor": msgspec.to_builtins(instance.flavor)},
                "off": instance.vm_state == states.STOPPED or (request.stay_off and instance.vm_state == states.ACTIVE)}

    def accept(self, ctl: Acceptance, request: EvacuateRequest) -> None:
        instance = ctl.instance
        if not instance.host:
            raise exception.InstanceNotReady(instance_id=instance.uuid)
        if ctl.host_up(instance.host):
            raise exception.ComputeServiceInUse(host=instance.host)
        if request.host and request.host == instance.host:
            raise exception.EvacuateToSameHost()
        ctl.set(progress=0)
        ctl.keep_secret(request.admin_pass)
        self.begin_move(ctl, instance.flavor, request.host, forced=request.force)

    # --- steps -----------------------------------------------------------------------------------------
    @step(CONDUCTOR, undo="unplace", asks_scheduler=True, event="rebuild_server")
    def place(self, ctl: Control) -> None:
        ctl.check_secrets()
        here = ctl.instance.host or ""
        if here != self.data.source and ctl.host_up(here):  # what this has superseded left the server there
            raise exception.ComputeServiceInUse(host=here)
        chosen = self.choose(ctl, moves.PRE_MIGRATING)
        # Its disks stay for now: this may fail, and they are all that there is of the server.
        ctl.evict(self.data.source, keep_disks=True)
        self.use_claim(ctl, self.data.migration)
        ctl.set(host=chosen.host, node=chosen.node, availability_zone=chosen.availability_zone)

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        super().bind_volumes(ctl)
        ctl.outside_volumes.adopt(self.data.there)

    @step(CONDUCTOR, undo="bind_back", external=NETWORK, when="outside_interfaces")
    def bind(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.host)

    @step("host", event=_EVENT, task_state=states.REBUILDING, undo="look_away", evict=True,
          results=("shared",))
    @connects_volumes
    def look(self, host: Host) -> None:
        """Whether the server's disks are there, also those that a move which its source did not end has set aside."""
        if not host.driver.has_disks(host.instance):
            host.connect_volumes()
            host.driver.revert_move(host.instance)
        host.result(shared=host.driver.has_disks(host.instance))

    @step(CONDUCTOR, event=_EVENT)
    def found(self, ctl: Control) -> None:
        """What was found is journaled before anything is made there: it says what may be removed again."""

    @step("host", event=_EVENT, task_state=states.REBUILDING, undo="unplug", evict=True)
    def network(self, host: Host) -> None:
        host.network.plug(host.instance, host.rules)

    @step("host", event=_EVENT, task_state=states.REBUILD_BLOCK_DEVICE_MAPPING, undo="wipe", evict=True)
    @connects_volumes
    def disks(self, host: Host) -> None:
        host.prepare_disks()
        host.connect_volumes()

    @step("host", event=_EVENT, task_state=states.REBUILD_SPAWNING, evict=True, results=("plugs",))
    @connects_volumes
    def start(self, host: Host) -> None:
        host.connect_volumes()
        if self.data.off:
            host.spawn()
            host.driver.power_off(host.instance, timeout=0)
        else:
            plugging.start(host, host.spawn)
        on_host.report_guest(host)

    @step(CONDUCTOR, when="plugs")
    def plugged(self, ctl: Control) -> None:
        plugging.wait(ctl, self.data.plugs)

    @step("host", event=_EVENT, task_state=states.REBUILD_SPAWNING, evict=True, when="plugs")
    def go(self, host: Host) -> None:
        plugging.go(host)

    leave_volumes = Move.leave_volumes

    # --- compensations ---------------------------------------------------------------------------------
    def look_away(self, host: Host) -> None:
        host.driver.destroy(host.instance, keep_disks=True)
        host.disconnect_volumes()

    def unplug(self, host: Host) -> None:
        host.network.unplug(host.instance)

    def wipe(self, host: Host) -> None:
        host.driver.destroy(host.instance, keep_disks=self.data.shared)
        host.disconnect_volumes()

    def bind_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.source)

    def unplace(self, ctl: Control) -> None:
        data: EvacuateData = self.data
        self.let_go(ctl)
        self.use_claim(ctl)
        ctl.keep(data.source)
        ctl.set(host=data.source, node=data.source_node, availability_zone=data.source_zone)

    def keeps_disks(self, host: str) -> bool:
        return True  # how far the destination came is not known: they may be the source's

    # --- the end ---------------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        self.arrive(ctl, moves.DONE)
        ctl.evict(self.data.source, self.data.shared)
        ctl.set(vm_state=states.STOPPED if self.data.off else states.ACTIVE, task_state=None, launched_at=ctl.now())

    def failed(self, ctl: Control, failure: Failure) -> None:
        no_host = failure.kind == exception.NoValidHost.__name__
        self.stay(ctl, moves.ERROR if no_host else moves.FAILED)
        ctl.set(task_state=None)
        if not no_host and failure.kind != exception.ComputeServiceInUse.__name__:
            ctl.set(vm_state=states.ERROR)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        self.stay(ctl, moves.FAILED)
