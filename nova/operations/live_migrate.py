"""Live migration: the guest goes on running while its memory (and disks, where they are not shared) go to another host.

place (conductor) → describe (source) → make_room (destination) → depart (conductor) → migrate (source) →
arrive_there (conductor) → finish (destination) → clean (source); of volumes and interfaces that outside services keep
tells nova/operations/moves.py. Until it has arrived the guest is the source's, and
everything is taken back there; afterwards it is the destination's, whatever else fails.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nova import exception
from nova.objects import migration as moves
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import Instance
from nova.objects.moves import MigrationProgress, MigrationSource, MigrationTarget
from nova.operations import on_host
from nova.operations.base import CONDUCTOR, NETWORK, Rules, connects_volumes, step
from nova.operations.contexts import Acceptance, Control, Host
from nova.operations.moves import Move, MoveData

_SIZES = ("memory_total", "memory_processed", "memory_remaining", "disk_total", "disk_processed", "disk_remaining")
# Seconds: a guest that writes faster than the network carries is a matter of minutes, not of days.
_DEADLINE = 24 * 3600.0


class LiveMigrateRequest(Object, kw_only=True):
    """``block_migration``: whether disks are copied (None: if they are not shared); ``force``: skip the filters."""

    host: str | None = None
    block_migration: bool | None = None
    force: bool = False


class LiveMigrateData(MoveData, kw_only=True):
    """``arrived``: the guest runs on the destination, no way back. ``left``: the source has let go of it.

    ``follows``: it came over though its source could not tell, and its interfaces are still bound there.
    ``refusals``: how many hosts could not take the guest; ``refusal``: the reason of the last one.
    """

    block_migration: bool | None = None
    described: MigrationSource | None = None
    target: MigrationTarget | None = None
    arrived: bool = False
    left: bool = False
    follows: bool = False
    refusals: int = 0
    refusal: str = ""


class LiveMigrate(Move):
    name = "live_migrate"
    action = "live-migration"
    rules = Rules(label="os-migrateLive", vm_states=frozenset({states.ACTIVE, states.PAUSED}), host="up",
                  without_shares=True)
    request_type = LiveMigrateRequest
    data_type = LiveMigrateData
    task_state = states.MIGRATING
    migration_type = moves.LIVE_MIGRATION

    @classmethod
    def begin(cls, instance: Instance, request: LiveMigrateRequest) -> dict[str, object]:
        return {"spec": {"instance_uuids": [], "project_id": "", "flavor": msgspec.to_builtins(instance.flavor)},
                "block_migration": request.block_migration}

    def accept(self, ctl: Acceptance, request: LiveMigrateRequest) -> None:
        if request.host and request.host == ctl.instance.host:
            raise exception.UnableToMigrateToSelf(instance_id=ctl.instance.uuid, host=request.host)
        if ctl.instance.pci_devices:
            raise exception.MigrationPreCheckError(reason="the server has PCI devices of its host")
        ctl.set(progress=0)
        self.begin_move(ctl, ctl.instance.flavor, request.host, forced=request.force)

    # --- steps -----------------------------------------------------------------------------------------
    @step(CONDUCTOR, undo="unplace", asks_scheduler=True, event="conductor_live_migrate_instance")
    def place(self, ctl: Control) -> None:
        try:
            self.choose(ctl, moves.PREPARING)
        except exception.NoValidHost:
            if self.data.refusal:
                raise exception.NoValidHost(reason=self.data.refusal) from None
            raise

    bind_volumes = Move.bind_volumes

    @step(CONDUCTOR, undo="bind", external=NETWORK, when="follows")
    def unbound(self, ctl: Control) -> None:
        """Only its compensation does anything: a guest that has come over takes its interfaces along."""

    @step("source", event="compute_check_can_live_migrate_source", task_state=states.MIGRATING, undo="close",
          results=("described",), undo_results=("left",))
    def describe(self, host: Host) -> None:
        host.result(described=host.driver.check_migration_source(host.instance))

    @step("host", event="compute_pre_live_migration", task_state=states.MIGRATING, undo="rollback", evict=True,
          results=("target",), undo_results=("arrived", "follows"))
    @connects_volumes
    def make_room(self, host: Host) -> None:
        # Floating addresses lead to where the guest runs: they come over when it has.
        host.rules = msgspec.structs.replace(host.rules, floating={})
        on_host.connect(host)
        # (where it comes from is not the source's to say)
        described = msgspec.structs.replace(self.data.described, host=self.data.source)
        host.result(target=host.driver.prepare_migration(host.instance, described, self.data.block_migration))

    @step(CONDUCTOR)
    def depart(self, ctl: Control) -> None:
        """The last moment in which nothing has moved: whoever thought better of it meanwhile is heard here."""
        if ctl.migration(self.data.migration).wanted == moves.CANCEL:
            raise exception.MigrationCancelled()

    @step("source", event="compute_live_migration", task_state=states.MIGRATING, deadline=_DEADLINE)
    def migrate(self, host: Host) -> None:
        def tell(progress: MigrationProgress) -> None:
            host.progress(progress.percent, **msgspec.to_builtins(progress))

        tell(MigrationProgress())
        host.driver.live_migrate(host.instance, self.data.target, tell, host.cancelled)

    @step(CONDUCTOR)
    def arrive_there(self, ctl: Control) -> None:
        self.data.arrived = True
        self._move(ctl)

    @step(CONDUCTOR, external=NETWORK, when="outside_interfaces")
    def bind(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.host)

    @step("host", event="compute_post_live_migration_at_destination", task_state=states.MIGRATING)
    @connects_volumes
    def finish(self, host: Host) -> None:
        on_host.connect(host)
        host.driver.finish_migration(host.instance)
        on_host.report_guest(host)

    @step("source", event="compute_post_live_migration", task_state=states.MIGRATING, when_down="skip", evict=True)
    def clean(self, host: Host) -> None:
        host.driver.destroy(host.instance, keep_disks=self._shared())
        on_host.disconnect(host)

    leave_volumes = Move.leave_volumes

    def unbind_volumes(self, ctl: Control) -> None:
        if self.data.arrived:
            self._keep_ways(ctl, self.data.there, self.data.host)
        else:
            super().unbind_volumes(ctl)

    def _shared(self) -> bool:
        return self.data.target is not None and self.data.target.shared

    def _move(self, ctl: Control) -> None:
        chosen = self.data.candidates[0]
        self.use_claim(ctl, self.data.migration)
        ctl.outside_volumes.adopt(self.data.there)
        ctl.set(host=chosen.host, node=chosen.node, availability_zone=chosen.availability_zone)

    def may_retry(self, failure: Failure) -> bool:
        """Return True if the next host is to be tried: no host was named, and this one could not take the guest."""
        data: LiveMigrateData = self.data
        if super().may_retry(failure):
            return True
        named = data.spec.force_host or data.spec.requested_host
        # Without a description the source refused; with a target the destination had accepted.
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

    # --- while it runs -------------------------------------------------------------------------------------
    def interrupted(self, host: Host, what: str) -> None:
        if what == moves.FORCE_COMPLETE:
            host.driver.force_complete_migration(host.instance.uuid)

    def noted(self, ctl: Control, values: dict[str, Any]) -> None:
        told = msgspec.convert(values, MigrationProgress)
        sizes = {name: getattr(told, name) for name in _SIZES}
        ctl.migrate(self.data.migration, status=moves.RUNNING_POST_COPY if told.post_copy else moves.RUNNING, **sizes)

    # --- compensations ---------------------------------------------------------------------------------------
    def close(self, host: Host) -> None:
        """The source serves disks from the moment in which it described them; it has none once the guest has left."""
        if self.data.arrived:
            self.clean(host)
            host.result(left=True)
        else:
            host.driver.close_disks(host.instance)

    def rollback(self, host: Host) -> None:
        """Take back what was prepared, unless the guest runs here: then the source was lost after it had come over."""
        if self.data.arrived or self._came_over(host):
            host.driver.finish_migration(host.instance)
            host.result(arrived=True, follows=self.data.outside_interfaces)
            on_host.report_guest(host)
            return
        host.driver.rollback_migration(host.instance, self.data.target or MigrationTarget(host=self.data.host))
        on_host.disconnect(host)

    @staticmethod
    def _came_over(host: Host) -> bool:
        """One that a migration is just bringing is not listed."""
        return any(guest.uuid == host.instance.uuid for guest in host.driver.guests())

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

    # --- the end -------------------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        self.arrive(ctl, moves.COMPLETED)
        ctl.set(task_state=None, progress=0)

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.set(task_state=None, progress=0)
        ctl.fault(failure)
        if self.data.arrived:
            self.arrive(ctl, moves.COMPLETED)
            if failure.host != self.data.source:
                ctl.set(vm_state=states.ERROR)
            return
        self.stay(ctl, self._status(failure))
        vm_state = states.as_the_guest(ctl.instance.vm_state, ctl.instance.power_state)
        if vm_state:
            ctl.set(vm_state=vm_state)

    def _status(self, failure: Failure) -> str:
        if failure.kind == exception.MigrationCancelled.__name__:
            return moves.CANCELLED
        return moves.FAILED if self.data.target is not None else moves.ERROR

    def superseded(self, ctl: Control) -> None:
        if self.data.arrived:
            self.arrive(ctl, moves.COMPLETED)
        else:
            self.stay(ctl, moves.CANCELLED)
