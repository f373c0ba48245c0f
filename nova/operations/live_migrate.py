"""Live migration: the guest keeps running while its memory (and disks, if not shared) are copied to another host.

place (conductor) → describe (source) → make_room (destination) → depart (conductor) → migrate (source) → arrive_there
(conductor) → finish (destination) → clean (source). For volumes and interfaces of external services see
nova/operations/moves.py. Before arrive_there the guest belongs to the source, and failures are compensated there.
Afterwards the guest belongs to the destination, whatever else fails."""

from typing import Any

import msgspec

from nova import exception
from nova.objects.base import Object
from nova.objects.networks.network import VIF
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.objects.servers.moves import MigrationProgress, MigrationSource, MigrationTarget
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, NETWORK, Step, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import ANY_TPM, Rules
from nova.operations.moves import Move, MoveData

_SIZES = ("memory_total", "memory_processed", "memory_remaining", "disk_total", "disk_processed", "disk_remaining")
# Seconds after which the step fails. Even a guest that writes its memory faster than the network can copy it takes
# minutes, not days.
_DEADLINE = 24 * 3600.0


class LiveMigrateRequest(Object, kw_only=True):
    """``block_migration``: copy disks (None: copy if they are not shared); ``force``: skip the filters."""

    host: str | None = None
    block_migration: bool | None = None
    force: bool = False


class LiveMigrateData(MoveData, kw_only=True):
    """``arrived``: the guest runs on the destination and cannot return. ``left``: the source has removed the guest.
    ``vifs``: the interfaces of an external service as the destination plugs them.
    ``refusals``: number of hosts that could not receive the guest; ``refusal``: the reason of the newest refusal."""

    block_migration: bool | None = None
    described: MigrationSource | None = None
    target: MigrationTarget | None = None
    arrived: bool = False
    left: bool = False
    vifs: list[VIF] = []
    refusals: int = 0
    refusal: str = ""


class LiveMigrate(Move):
    name, action = "live_migrate", "live-migration"
    rules = Rules(label="os-migrateLive", vm_states=frozenset({states.ACTIVE, states.PAUSED}), host="up",
                  without_shares=True, without_tpm=ANY_TPM - {"host"})
    request_type = LiveMigrateRequest
    data_type = LiveMigrateData
    task_state = states.MIGRATING
    migration_type = migration_states.LIVE_MIGRATION

    @classmethod
    def begin(cls, instance: Instance, request: LiveMigrateRequest) -> dict[str, object]:
        return {**super().begin(instance, request), "block_migration": request.block_migration}

    def accept(self, ctl: Acceptance, request: LiveMigrateRequest) -> None:
        if request.host and request.host == ctl.instance.host:
            raise exception.UnableToMigrateToSelf(instance_id=ctl.instance.uuid, host=request.host)
        if ctl.instance.pci_devices:
            raise exception.MigrationPreCheckError(reason="the server has PCI devices of its host")
        ctl.set(progress=0)
        self.begin_move(ctl, ctl.instance.flavor, request.host, forced=request.force)

    @step(CONDUCTOR, undo="unplace", calls_scheduler=True, event="conductor_live_migrate_instance")
    def place(self, ctl: Control) -> None:
        try:
            self.choose(ctl, migration_states.PREPARING)
        except exception.NoValidHost:
            if self.data.refusal:
                raise exception.NoValidHost(reason=self.data.refusal) from None
            raise

    bind_volumes = Move.bind_volumes

    @step(CONDUCTOR, undo="bind_where_it_runs", external=NETWORK, when="outside_interfaces", journaled_as="unbound")
    def bind_also(self, ctl: Control) -> None:
        self.data.vifs = ctl.outside_interfaces.bind_also(self.data.host)

    @step("source", event="compute_check_can_live_migrate_source", task_state=states.MIGRATING, undo="close",
          results=("described",), undo_results=("left",))
    def describe(self, host: HostContext) -> None:
        host.result(described=host.driver.live_source.check(host.instance))

    @step("host", event="compute_pre_live_migration", task_state=states.MIGRATING, undo="rollback", evict=True,
          results=("target",), undo_results=("arrived",))
    @connects_volumes
    def make_room(self, host: HostContext) -> None:
        # Floating addresses are routed to the host where the guest runs, so they move after the guest.
        host.rules = msgspec.structs.replace(host.rules, floating={})
        arriving = self._as_plugged_there(host.instance)
        on_host.connect(host, arriving)
        # do not trust the host name that the source reported
        described = msgspec.structs.replace(self.data.described, host=self.data.source)
        host.result(target=host.driver.live_target.prepare(arriving, described, self.data.block_migration))

    @step(CONDUCTOR)
    def depart(self, ctl: Control) -> None:
        """Fail if the user cancelled the migration before anything was moved."""
        if ctl.migration(self.data.migration).wanted == migration_states.CANCEL:
            raise exception.MigrationCancelled()

    @step("source", event="compute_live_migration", task_state=states.MIGRATING, deadline=_DEADLINE)
    def migrate(self, host: HostContext) -> None:
        def report(progress: MigrationProgress) -> None:
            host.progress(progress.percent, **msgspec.to_builtins(progress))

        report(MigrationProgress())
        host.driver.live_source.migrate(host.instance, self.data.target, report, host.cancelled)

    @step(CONDUCTOR)
    def arrive_there(self, ctl: Control) -> None:
        self.data.arrived = True
        self._move(ctl)

    @step(CONDUCTOR, external=NETWORK, when="outside_interfaces")
    def bind(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.host, self.data.source)

    @step("host", event="compute_post_live_migration_at_destination", task_state=states.MIGRATING)
    @connects_volumes
    def finish(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.live_target.finish(host.instance)
        on_host.report_guest(host)

    @step("source", event="compute_post_live_migration", task_state=states.MIGRATING, when_down="skip", evict=True)
    def clean(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance, keep_disks=self._shared())
        on_host.disconnect(host)

    leave_volumes = Move.leave_volumes

    def unbind_volumes(self, ctl: Control) -> None:
        if self.data.arrived:
            self._restore_connections(ctl, self.data.there, self.data.host)
        else:
            super().unbind_volumes(ctl)

    def clean_up(self, of: Step, ctl: Control) -> None:
        host = ctl.instance.host
        if of.external == NETWORK and host and not ctl.instance.deleted:
            ctl.outside_interfaces.bind(host, *({self.data.source, self.data.host} - {host, ""}))
        else:
            super().clean_up(of, ctl)

    def _as_plugged_there(self, instance: Instance) -> Instance:
        return msgspec.structs.replace(instance, network_info=self.data.vifs or instance.network_info)

    def _shared(self) -> bool:
        return self.data.target is not None and self.data.target.shared

    def _move(self, ctl: Control) -> None:
        chosen = self.data.candidates[0]
        self.use_claim(ctl, self.data.migration)
        ctl.volumes.adopt(self.data.there)
        ctl.set(host=chosen.host, node=chosen.node, availability_zone=chosen.availability_zone)

    def may_retry(self, failure: Failure) -> bool:
        """Return True to try the next host: the request named no host, and the current one cannot receive the guest."""
        data: LiveMigrateData = self.data
        if super().may_retry(failure) or failure.kind == exception.PortBindingFailed.__name__:
            return True
        named = data.spec.force_host or data.spec.requested_host
        # No ``described``: the source refused the migration. A ``target``: the destination had accepted the guest.
        if named or data.described is None or data.target is not None or not failure.retry:
            return False
        data.refusals += 1
        data.refusal = failure.message
        if data.refusals > data.spec.alternates:
            return False
        data.described = None
        if not data.candidates:
            data.selected = False
        return True

    def interrupted(self, host: HostContext, what: str) -> None:
        if what == migration_states.FORCE_COMPLETE:
            host.driver.live_source.force_complete(host.instance.uuid)

    def noted(self, ctl: Control, values: dict[str, Any]) -> None:
        progress = msgspec.convert(values, MigrationProgress)
        sizes = {name: getattr(progress, name) for name in _SIZES}
        status = migration_states.RUNNING_POST_COPY if progress.post_copy else migration_states.RUNNING
        ctl.migrate(self.data.migration, status=status, **sizes)

    def close(self, host: HostContext) -> None:
        """Stop serving disks on the source, or remove the guest there if it has arrived at the destination."""
        if self.data.arrived:
            self.clean(host)
            host.result(left=True)
        else:
            host.driver.cold_migration.close_disks(host.instance)

    def rollback(self, host: HostContext) -> None:
        """Undo the preparation, unless the guest runs on this host because the source was lost after it arrived."""
        # The list of guests does not contain the guests of unfinished migrations.
        if self.data.arrived or any(guest.uuid == host.instance.uuid for guest in host.driver.guests.all()):
            host.driver.live_target.finish(host.instance)
            host.result(arrived=True)
            on_host.report_guest(host)
            return
        host.driver.live_target.rollback(host.instance, self.data.target or MigrationTarget(host=self.data.host))
        on_host.disconnect(host, self._as_plugged_there(host.instance))

    def bind_where_it_runs(self, ctl: Control) -> None:
        if self.data.arrived:
            self.bind(ctl)
        else:
            ctl.outside_interfaces.bind(self.data.source, self.data.host)

    def unplace(self, ctl: Control) -> None:
        if not self.data.arrived:
            self.let_go(ctl)
            return
        self._move(ctl)
        if not self.data.left:
            ctl.evict(self.data.source, self._shared())

    def stays(self, host: str) -> bool:
        return bool(self.data.arrived and host == self.data.host)

    def keeps_disks(self, host: str) -> bool:
        return self._shared()

    def succeeded(self, ctl: Control) -> None:
        self.arrive(ctl, migration_states.COMPLETED)
        ctl.set(task_state=None, progress=0)

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.set(task_state=None, progress=0)
        ctl.fault(failure)
        if self.data.arrived:
            self.arrive(ctl, migration_states.COMPLETED)
            if failure.host != self.data.source:
                ctl.set(vm_state=states.ERROR)
            return
        self.stay(ctl, self._status(failure))
        vm_state = states.vm_state_of(ctl.instance.vm_state, ctl.instance.power_state)
        if vm_state:
            ctl.set(vm_state=vm_state)

    def _status(self, failure: Failure) -> str:
        if failure.kind == exception.MigrationCancelled.__name__:
            return migration_states.CANCELLED
        return migration_states.FAILED if self.data.target is not None else migration_states.ERROR

    def superseded(self, ctl: Control) -> None:
        if self.data.arrived:
            self.arrive(ctl, migration_states.COMPLETED)
        else:
            self.stay(ctl, migration_states.CANCELLED)
