"""Resize and cold migration: the guest is shut down, its disks are copied, and the user confirms or reverts the move.

place (conductor) → move_out (source) → receive (destination) → close (source). If the network back end reports when
interfaces are plugged, plugged (conductor) → go (destination) run before close. For volumes and interfaces of external
services see nova/operations/moves.py. The source keeps the disks that it renamed until the move is confirmed; a
revert restores them."""

import functools
from typing import ClassVar

import msgspec

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import Object
from nova.objects.requirements import local_disks
from nova.objects.requirements.properties import tpm_secret_security
from nova.objects.requirements.requested_resources import check_resize, requests_dedicated_resources
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.servers.migration import Migration
from nova.objects.servers.moves import DiskSource
from nova.operations.framework import on_host, plugging
from nova.operations.framework.base import CONDUCTOR, NETWORK, SHARES, VOLUMES, Step, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules
from nova.operations.moves import Bound, Move, MoveData, has_dedicated_resources

_BEFORE = "old_vm_state"  # key in system_metadata: vm_state before the resize


class ResizeRequest(Object, kw_only=True):
    flavor_id: str
    disk_config: str | None = None


class MigrateRequest(Object, kw_only=True):
    host: str | None = None


class ResizeData(MoveData, kw_only=True):
    """``running``: the guest is started at the end; ``disks``: address at which the source serves disks. ``stranded``:
    the source failed to restore the guest, or has not done it yet. ``share_polls``: number of waits for another server
    to release its access to a share."""

    flavor: Flavor | None = None
    running: bool = True
    stranded: bool = False
    share_polls: int = msgspec.field(default=0, name="looks_for_shares")
    disks: DiskSource | None = None


class Resize(Move):
    name = action = "resize"
    rules = Rules(label="resize", vm_states=frozenset({states.ACTIVE, states.STOPPED}), host="up")
    request_type: ClassVar[type[Object]] = ResizeRequest
    data_type = ResizeData
    task_state = states.RESIZE_PREP
    shuts_down = True
    migration_type = migration_states.RESIZE
    first_status = migration_states.PRE_MIGRATING

    def accept(self, ctl: Acceptance, request: ResizeRequest) -> None:
        instance = ctl.instance
        flavor = ctl.flavor(request.flavor_id)
        if flavor.flavorid == instance.flavor.flavorid:
            raise exception.CannotResizeToSameFlavor()
        if flavor.root_gb == 0 and instance.flavor.root_gb and not instance.volume_backed:
            raise exception.InvalidInput("Resize to zero disk flavor is not allowed.")
        if {"deployment"} < {tpm_secret_security(kind, instance.image) for kind in (flavor, instance.flavor)} - {""}:
            raise exception.InvalidInput("A resize cannot change hw:tpm_secret_security to or from deployment.")
        local_disks.check_ephemerals(instance.block_devices, flavor)
        check_resize(instance, flavor)
        ctl.reserve(flavor.vcpus - instance.flavor.vcpus, flavor.memory_mb - instance.flavor.memory_mb)
        if request.disk_config:
            ctl.set(disk_config=request.disk_config)
        self._begin(ctl, flavor, None, same_host=ctl.same_host_allowed)

    def _begin(self, ctl: Acceptance, flavor: Flavor, host: str | None, same_host: bool) -> None:
        self.data.flavor, self.data.running = flavor, ctl.instance.vm_state == states.ACTIVE
        ctl.set(progress=0)
        self.begin_move(ctl, flavor, host, same_host=same_host, new_flavor=flavor)

    @step(CONDUCTOR, undo="let_go", calls_scheduler=True, event="cold_migrate")
    def place(self, ctl: Control) -> None:
        self.choose(ctl, migration_states.MIGRATING)

    bind_volumes = Move.bind_volumes

    @step(CONDUCTOR, undo="close_shares", external=SHARES, when="shares")
    def open_shares(self, ctl: Control) -> None:
        self.data.share_polls += 1
        ctl.outside_shares.allow(self.data.host, self.data.share_polls)

    @step("source", event="compute_resize_instance", task_state=states.RESIZE_MIGRATING, undo="move_back",
          results=("disks",), undo_results=("stranded",))
    def move_out(self, host: HostContext) -> None:
        host.driver.cold_migration.check_resize(host.instance, self.data.flavor)
        timeout = host.shutdown_timeout if self.data.running else 0
        host.result(disks=host.driver.cold_migration.open_disks(host.instance, timeout))
        on_host.disconnect(host)

    bind = Move.bind

    @step("host", event="compute_finish_resize", task_state=states.RESIZE_FINISH, undo="drop", evict=True,
          results=("plugs",))
    @connects_volumes
    def receive(self, host: HostContext) -> None:
        moved = self._moved(host.instance)
        on_host.connect(host, moved, self.data.running)
        # do not trust the host name that the source reported
        host.driver.cold_migration.receive_disks(moved, msgspec.structs.replace(self.data.disks, host=self.data.source))
        host.driver.cold_migration.finish(moved)
        if self.data.running:
            plugging.start(host, functools.partial(host.driver.power.on, moved))
        on_host.report_guest(host)

    plugged = plugging.plugged

    @step("host", event="compute_finish_resize", task_state=states.RESIZE_FINISH, evict=True, when="plugs")
    def go(self, host: HostContext) -> None:
        plugging.go(host)

    @step("source", event="compute_finish_resize", when_down="skip")
    def close(self, host: HostContext) -> None:
        host.driver.cold_migration.close_disks(host.instance)

    adopt_volumes, leave_volumes = Move.adopt_volumes, Move.leave_volumes

    def _moved(self, instance: Instance) -> Instance:
        """Return the instance as it is on the destination."""
        return msgspec.structs.replace(instance, flavor=self.data.flavor, host=self.data.host)

    def drop(self, host: HostContext) -> None:
        moved = self._moved(host.instance)
        host.driver.guests.destroy(moved)
        on_host.disconnect(host, moved)

    def close_shares(self, ctl: Control) -> None:
        if self.data.host != self.data.source:
            ctl.outside_shares.deny(self.data.host)

    @connects_volumes
    def move_back(self, host: HostContext) -> None:
        if self.data.stranded:
            self.drop(host)
            host.result(stranded=False)
        put_back(host, host.instance, self.data.running)

    def compensation_failed(self, of: Step) -> None:
        # On the same host the original guest cannot be restored while the resized guest exists.
        self.data.stranded |= of.name == "move_out" or (of.name == "receive" and self.data.host == self.data.source)

    def stays(self, host: str) -> bool:
        return bool(host == self.data.source)

    def succeeded(self, ctl: Control) -> None:
        data: ResizeData = self.data
        chosen = data.candidates[0]
        ctl.set_items({_BEFORE: ctl.instance.vm_state})
        ctl.finish_io(failed=None, node_uuid=chosen.node_uuid)
        ctl.migrate(data.migration, status=migration_states.FINISHED)
        self.use_claim(ctl, data.migration)
        ctl.set(vm_state=states.RESIZED, task_state=None, flavor=data.flavor, host=chosen.host, node=chosen.node,
                availability_zone=chosen.availability_zone, launched_at=ctl.now())

    def failed(self, ctl: Control, failure: Failure) -> None:
        self.superseded(ctl)
        # A hard reboot recovers a guest that was not restored.
        vm_state = (states.ERROR if self.data.stranded
                    else states.vm_state_of(ctl.instance.vm_state, ctl.instance.power_state))
        ctl.set(task_state=None, **({"vm_state": vm_state} if vm_state else {}))
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        self.stay(ctl, migration_states.ERROR)
        if self.data.flavor is not None:
            give_back(ctl, ctl.instance.flavor, self.data.flavor)


class Migrate(Resize):
    """Cold migration: a resize to the same flavor."""

    name = action = "migrate"
    rules = Rules(label="migrate", vm_states=frozenset({states.ACTIVE, states.STOPPED}), host="up")
    request_type = MigrateRequest
    migration_type = migration_states.MIGRATION

    def accept(self, ctl: Acceptance, request: MigrateRequest) -> None:  # type: ignore[override]
        if request.host and request.host == ctl.instance.host:
            raise exception.CannotMigrateToSameHost()
        self._begin(ctl, ctl.instance.flavor, request.host, same_host=False)


def put_back(host: HostContext, instance: Instance, running: bool) -> None:
    """Restore the guest on the source as it was before the move."""
    host.driver.cold_migration.close_disks(instance)
    host.connect_volumes(instance)
    host.driver.cold_migration.revert(instance)
    host.network.plug(instance, host.rules)
    if running:
        host.connect_shares(instance)
        host.driver.power.on(instance)
    on_host.report_guest(host)


def give_back(ctl: Control, flavor: Flavor, other: Flavor) -> None:
    """Release the quota that was charged for ``other`` in excess of ``flavor``, which the server keeps."""
    ctl.charge(min(0, flavor.vcpus - other.vcpus), min(0, flavor.memory_mb - other.memory_mb))


# --- confirm and revert ----------------------------------------------------------------------------------
class FinishData(Object, kw_only=True):
    """Data of a confirm or revert. ``host``: current host; ``source``: host before the move, with ``old_flavor``.
    ``stays``: the destination failed to remove its guest and keeps it; ``removed``: the destination removed its guest
    although another operation took over; ``dedicated``: the server has dedicated resources on one of the hosts.
    ``outside_interfaces``, ``outside_volumes``: see MoveData; ``there``: the volumes as connected to the source."""

    host: str = ""
    source: str = ""
    source_node: str = ""
    migration: str = ""
    old_flavor: Flavor | None = None
    running: bool = True
    stays: bool = False
    removed: bool = msgspec.field(default=False, name="gone")
    dedicated: bool = msgspec.field(default=False, name="fitted")
    outside_interfaces: bool = False
    outside_volumes: bool = False
    shares: bool = False
    there: list[BlockDevice] = []


class _Finish(Bound):
    data_type = FinishData
    kind = "move"

    def _take(self, ctl: Acceptance, status: str) -> None:
        migration = ctl.the_migration(migration_states.FINISHED)
        self.take(ctl, migration)
        ctl.migrate(migration.uuid, status=status)

    def take(self, ctl: Control, migration: Migration) -> None:
        """Fill in the data of the move that ends."""
        self.data.migration, self.data.old_flavor = migration.uuid, migration.old_flavor
        self.data.source, self.data.source_node = migration.source_compute, migration.source_node
        self.data.running = ctl.instance.system_metadata.get(_BEFORE) != states.STOPPED
        self.data.dedicated = has_dedicated_resources(ctl.instance) or (
            migration.old_flavor is not None and requests_dedicated_resources(migration.old_flavor, ctl.instance.image))
        self.data.outside_interfaces = ctl.network_is_outside
        self.data.shares = bool(ctl.instance.shares)

    def claim_of(self, step: Step) -> str:
        return self.instance.uuid if self.data.dedicated and step.place == "source" else ""

    def superseded(self, ctl: Control) -> None:
        ctl.migrate(self.data.migration, status=migration_states.ERROR)


class ConfirmResize(_Finish):
    name, action = "confirm_resize", "confirmResize"
    rules = Rules(label="confirmResize", vm_states=frozenset({states.RESIZED}))

    def accept(self, ctl: Acceptance, request: Object) -> None:
        self._take(ctl, migration_states.CONFIRMING)
        if not ctl.host_up(self.data.source):
            raise exception.ComputeServiceUnavailable()

    @step("source", event="compute_confirm_resize", when_down="skip", evict=True)
    def forget(self, host: HostContext) -> None:
        host.driver.cold_migration.confirm(host.instance)
        if self.data.source != self.data.host:
            host.network.unplug(host.instance)

    @step(CONDUCTOR, journaled_as="settle")
    def end_move(self, ctl: Control) -> None:
        ctl.release_claim()
        ctl.rekey_claim(self.data.migration)
        ctl.migrate(self.data.migration, status=migration_states.CONFIRMED, open=False)
        if self.data.old_flavor is not None:
            give_back(ctl, ctl.instance.flavor, self.data.old_flavor)
        ctl.set_items({_BEFORE: None})

    # After other operations that end a move, the periodic check for stale accesses revokes the access to shares.
    @step(CONDUCTOR, external=SHARES, deferrable=True, when="shares")
    def leave_shares(self, ctl: Control) -> None:
        ctl.outside_shares.leave(self.data.host)

    def succeeded(self, ctl: Control) -> None:
        stopped = ctl.instance.power_state == states.SHUTDOWN
        ctl.set(task_state=None, vm_state=states.STOPPED if stopped else states.ACTIVE)

    def failed(self, ctl: Control, failure: Failure) -> None:
        # The source may have removed some of its disks: a revert must not be possible any more.
        self.end_move_without_source(ctl)
        self.succeeded(ctl)
        ctl.fault(failure)

    def end_move_without_source(self, ctl: Control) -> None:
        """End the move and let the source remove its disks later."""
        if self.data.source != ctl.instance.host:
            ctl.evict(self.data.source, self.keeps_disks(self.data.source))
        self.end_move(ctl)


class EndsMove(ConfirmResize):
    """Base of operations that first confirm a pending resize. A subclass lists these steps before its own:
    ``check_move, forget, end_move = EndsMove.check_move, ...``."""

    def accept(self, ctl: Acceptance, request: Object) -> None:
        for migration in ctl.open_migrations():
            self.data.migration = migration.uuid

    @step(CONDUCTOR, when="migration", journaled_as="look")
    def check_move(self, ctl: Control) -> None:
        """Check if the move is still open, after all compensations."""
        migration = ctl.migration(self.data.migration)
        if migration.open:
            self.take(ctl, migration)
            self.data.host = ctl.instance.host or ""
        else:
            self.data.migration = ""

    @step("source", when="migration", when_down="skip", evict=True)
    def forget(self, host: HostContext) -> None:
        super().forget(host)

    @step(CONDUCTOR, when="migration", journaled_as="settle")
    def end_move(self, ctl: Control) -> None:
        super().end_move(ctl)

    def superseded(self, ctl: Control) -> None:
        """End the move even if the operation is superseded."""
        if self.data.migration:
            self.check_move(ctl)
        if self.data.migration:
            self.end_move_without_source(ctl)


class RevertResize(_Finish):
    name, action = "revert_resize", "revertResize"
    rules = Rules(label="revertResize", vm_states=frozenset({states.RESIZED}))
    task_state = states.RESIZE_REVERTING
    ends_consoles = True

    def accept(self, ctl: Acceptance, request: Object) -> None:
        self._take(ctl, migration_states.REVERTING)
        left = ctl.volumes.bound_elsewhere(self.data.source)
        if left:
            raise exception.InvalidVolume(
                reason=f"the source host cannot reach {', '.join(left)}: detach these volumes before the revert")
        self.data.outside_volumes = ctl.volumes.are_outside

    def devices_at(self, of: Step) -> list[BlockDevice]:
        return list(self.data.there) if of.place == "source" else []

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        self.data.there = ctl.outside_volumes.connect_also(self.data.source)

    def unbind_volumes(self, ctl: Control) -> None:
        if self.data.removed if self.taken_over else not self.data.stays:
            self._restore_connections(ctl, self.data.there, self.data.source)
        else:
            self._restore_connections(ctl, [], self.data.host)

    @step("host", event="compute_revert_resize", task_state=states.RESIZE_REVERTING, when_down="skip", evict=True,
          undo="keep", undo_results=("gone", "stays"))
    def drop(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance)
        on_host.disconnect(host)

    @step(CONDUCTOR, undo="bind_there", external=NETWORK, when="outside_interfaces")
    def bind(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.source)

    def bind_there(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.host)

    @step("source", event="compute_finish_revert_resize", task_state=states.RESIZE_REVERTING)
    @connects_volumes
    def back(self, host: HostContext) -> None:
        before = msgspec.structs.replace(host.instance, flavor=self.data.old_flavor, host=self.data.source)
        put_back(host, before, self.data.running)

    adopt_volumes, leave_volumes = Bound.adopt_volumes, Bound.leave_volumes

    @step(CONDUCTOR, external=SHARES, deferrable=True, when="shares")
    def leave_shares(self, ctl: Control) -> None:
        ctl.outside_shares.leave(self.data.source)

    @connects_volumes
    def keep(self, host: HostContext) -> None:
        """Restart the guest on the destination if it could not be removed there."""
        removed = not any(guest.uuid == host.instance.uuid for guest in host.driver.guests.all())
        if self.taken_over or removed:
            host.result(gone=removed)
            return
        on_host.connect(host, runs=self.data.running)
        if self.data.running:
            host.driver.power.on(host.instance)
        on_host.report_guest(host)
        host.result(stays=True)

    def succeeded(self, ctl: Control) -> None:
        self._return(ctl, migration_states.REVERTED)
        ctl.set(task_state=None, vm_state=states.ACTIVE if self.data.running else states.STOPPED)

    def failed(self, ctl: Control, failure: Failure) -> None:
        if self.data.stays:
            ctl.migrate(self.data.migration, status=migration_states.FINISHED)  # the user may repeat the revert
            ctl.set(task_state=None)
        else:
            # The server's disks are on the source: a hard reboot restores and starts the guest.
            self._return(ctl, migration_states.ERROR)
            ctl.set(task_state=None, vm_state=states.ERROR)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        if self.data.removed:
            self._return(ctl, migration_states.ERROR)
        else:
            super().superseded(ctl)

    def _return(self, ctl: Control, status: str) -> None:
        data: FinishData = self.data
        old = data.old_flavor or ctl.instance.flavor
        give_back(ctl, old, ctl.instance.flavor)
        ctl.release_claim(data.migration)
        if data.dedicated:
            ctl.use_claim()
        ctl.migrate(data.migration, status=status, open=False)
        ctl.set_items({_BEFORE: None})
        ctl.volumes.adopt(data.there)
        ctl.set(flavor=old, host=data.source, node=data.source_node, availability_zone=ctl.zone_of(data.source))
