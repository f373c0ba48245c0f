"""Evacuate: rebuild a server of a failed host on another host, from its shared disks or from its image.

place (conductor) → find_disks (destination) → record_disks (conductor) → network, disks, start (destination). If the
network back end reports when interfaces are plugged: → plugged (conductor) → go (destination). From the moment when the
destination may run the guest, an eviction makes the source remove its guest when the source returns."""

from nova import exception
from nova.objects.base import Object
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.operations.framework import on_host, plugging
from nova.operations.framework.base import CONDUCTOR, VOLUMES, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import ANY_TPM, Rules
from nova.operations.moves import Move, MoveData

_EVENT = "compute_rebuild_instance"
_MOVING = (states.RESIZE_MIGRATING, states.RESIZE_FINISH)


class EvacuateRequest(Object, kw_only=True):
    """``stay_off``: the server is stopped after the evacuation in any case (API 2.95); ``force``: skip the filters."""

    host: str | None = None
    admin_pass: str | None = None
    force: bool = False
    stay_off: bool = False


class EvacuateData(MoveData, kw_only=True):
    """``shared``: the destination can access the server's disks. ``interrupted``: a resize was in progress. It may have
    renamed the disks, and disks under the original name may be an incomplete copy."""

    off: bool = False
    interrupted: bool = False
    shared: bool = False


class Evacuate(Move):
    name = action = "evacuate"
    rules = Rules(label="evacuate", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.ERROR}),
                  without_shares=True, without_tpm=ANY_TPM, task_states=None, lock=False, preempts=True,
                  # An evacuation must not supersede a soft delete, which ends soon even while its host is down.
                  yields_to=frozenset({states.DELETING, states.SOFT_DELETING}))
    request_type = EvacuateRequest
    data_type = EvacuateData
    task_state = states.REBUILDING
    migration_type = migration_states.EVACUATION
    kind = "build"

    @classmethod
    def begin(cls, instance: Instance, request: EvacuateRequest) -> dict[str, object]:
        off = instance.vm_state == states.STOPPED or (request.stay_off and instance.vm_state == states.ACTIVE)
        return {**super().begin(instance, request), "off": off, "interrupted": instance.task_state in _MOVING}

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

    @step(CONDUCTOR, undo="unplace", calls_scheduler=True, event="rebuild_server")
    def place(self, ctl: Control) -> None:
        ctl.check_secrets()
        here = ctl.instance.host or ""
        if here != self.data.source and ctl.host_up(here):  # a superseded move ended on a running host
            raise exception.ComputeServiceInUse(host=here)
        chosen = self.choose(ctl, migration_states.PRE_MIGRATING)
        # The disks on the source are kept: the evacuation may fail, and they may be the only copy.
        ctl.evict(self.data.source, keep_disks=True)
        self.use_claim(ctl, self.data.migration)
        ctl.set(host=chosen.host, node=chosen.node, availability_zone=chosen.availability_zone)

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        super().bind_volumes(ctl)
        ctl.volumes.adopt(self.data.there)

    bind = Move.bind

    @step("host", event=_EVENT, task_state=states.REBUILDING, undo="undo_find_disks", evict=True,
          results=("shared",), journaled_as="look")
    @connects_volumes
    def find_disks(self, host: HostContext) -> None:
        """Check for the server's disks on shared storage, including disks that an interrupted move renamed."""
        if self.data.interrupted or not host.driver.disks.exist(host.instance):
            host.connect_volumes()
            host.driver.cold_migration.revert(host.instance, former=self.data.source)
        host.result(shared=host.driver.disks.exist(host.instance))

    @step(CONDUCTOR, event=_EVENT, journaled_as="found")
    def record_disks(self, ctl: Control) -> None:
        """Write ``shared`` to the journal before disks are created: it decides whether compensations may remove disks.
        """

    @step("host", event=_EVENT, task_state=states.REBUILDING, undo="unplug", evict=True)
    def network(self, host: HostContext) -> None:
        host.network.plug(host.instance, host.rules)

    @step("host", event=_EVENT, task_state=states.REBUILD_BLOCK_DEVICE_MAPPING, undo="wipe", evict=True)
    @connects_volumes
    def disks(self, host: HostContext) -> None:
        host.prepare_disks()
        host.connect_volumes()

    @step("host", event=_EVENT, task_state=states.REBUILD_SPAWNING, evict=True, results=("plugs",))
    @connects_volumes
    def start(self, host: HostContext) -> None:
        host.connect_volumes()
        if self.data.off:
            host.spawn()
            host.driver.power.off(host.instance, timeout=0)
        else:
            plugging.start(host, host.spawn)
        on_host.report_guest(host)

    plugged = plugging.plugged

    @step("host", event=_EVENT, task_state=states.REBUILD_SPAWNING, evict=True, when="plugs")
    def go(self, host: HostContext) -> None:
        plugging.go(host)

    leave_volumes = Move.leave_volumes

    def undo_find_disks(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance, keep_disks=True)
        host.disconnect_volumes()

    def unplug(self, host: HostContext) -> None:
        host.network.unplug(host.instance)

    def wipe(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance, keep_disks=self.data.shared)
        host.disconnect_volumes()

    def unplace(self, ctl: Control) -> None:
        data: EvacuateData = self.data
        self.let_go(ctl)
        self.use_claim(ctl)
        ctl.keep(data.source)
        ctl.set(host=data.source, node=data.source_node, availability_zone=data.source_zone)

    def keeps_disks(self, host: str) -> bool:
        return True  # the guest may already use the disks of the source (shared storage)

    def succeeded(self, ctl: Control) -> None:
        self.arrive(ctl, migration_states.DONE)
        ctl.evict(self.data.source, self.data.shared)
        ctl.set(vm_state=states.STOPPED if self.data.off else states.ACTIVE, task_state=None, launched_at=ctl.now())

    def failed(self, ctl: Control, failure: Failure) -> None:
        no_host = failure.kind == exception.NoValidHost.__name__
        self.stay(ctl, migration_states.ERROR if no_host else migration_states.FAILED)
        ctl.set(task_state=None)
        if not no_host and failure.kind != exception.ComputeServiceInUse.__name__:
            ctl.set(vm_state=states.ERROR)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        self.stay(ctl, migration_states.FAILED)
