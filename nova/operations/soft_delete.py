"""Soft delete: power a server off; the user can restore it until it is reclaimed.

A soft-deleted server does not count against quota but keeps its resources on the host. A project may therefore have
only as many soft-deleted servers as its remaining quota allows; further servers are deleted immediately."""

import contextlib
import datetime

from nova import exception
from nova.objects.base import Object
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.operations.delete import Delete
from nova.operations.framework import on_host
from nova.operations.framework.base import NoData, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules
from nova.operations.power import Start
from nova.operations.resize import EndsMove
from nova.operations.shelve import SINCE


class SoftDelete(EndsMove):
    """Soft-delete a server. A repeated request changes nothing and does not extend the reclaim interval."""

    name, action = "soft_delete", "delete"
    rules = Rules(label="delete", task_states=None, preempts=True, keeps_guest=True, release=3)
    task_state = states.SOFT_DELETING
    kind = "power"
    shuts_down = ends_consoles = True
    final = states.SOFT_DELETED

    check_move, forget, end_move = EndsMove.check_move, EndsMove.forget, EndsMove.end_move

    def accept(self, ctl: Acceptance, request: Object) -> None:
        if ctl.instance.soft_deleted_at is None:
            ctl.check_room_to_wait()
        super().accept(ctl, request)

    @step("host", event="compute_soft_delete_instance", task_state=states.SOFT_DELETING, when_down="skip")
    def power_off(self, host: HostContext) -> None:
        on_host.power_off(host, host.shutdown_timeout if host.instance.vm_state == states.ACTIVE else 0)
        if host.instance.vm_state == states.RESCUED:
            host.driver.rescue.end(host.instance)

    def succeeded(self, ctl: Control) -> None:
        ctl.soft_delete()
        ctl.set(vm_state=self.final, task_state=None, progress=0)
        if ctl.instance.power_state != states.SHUTDOWN:
            ctl.set(power_state=states.NOSTATE)  # the host is down; the power sync stops the guest later

    def failed(self, ctl: Control, failure: Failure) -> None:
        self.superseded(ctl)
        if ctl.instance.vm_state == states.RESIZED:
            super().succeeded(ctl)  # the move has ended as if confirmed
        if ctl.instance.vm_state == states.SOFT_DELETED:
            ctl.soft_delete()  # again, because a superseded restore has undeleted the server
        ctl.set(task_state=None)
        ctl.fault(failure)


class RestoreData(NoData, kw_only=True):
    """``since``: time of the soft delete. ``runs``: start the guest, because the server was not shelved before."""

    since: datetime.datetime | None = None
    runs: bool = True


class Restore(Start):
    name = action = "restore"
    rules = Rules(label="restore", vm_states=frozenset({states.SOFT_DELETED}), release=3)
    data_type = RestoreData
    task_state = states.RESTORING

    def accept(self, ctl: Acceptance, request: Object) -> None:
        self.data.since = ctl.instance.soft_deleted_at
        self.data.runs = SINCE not in ctl.instance.system_metadata
        ctl.reserve_again()

    @step("host", event="compute_restore_instance", task_state=states.RESTORING, when="runs")
    @connects_volumes
    def power_on(self, host: HostContext) -> None:
        on_host.connect(host)
        # An unfinished rescue may remain if the host failed before it powered the guest off.
        with contextlib.suppress(exception.NotImplementedHere):
            host.driver.rescue.end(host.instance)
        super().power_on(host)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        if not self.data.runs:
            ctl.set(vm_state=states.SHELVED if ctl.instance.host else states.SHELVED_OFFLOADED)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        ctl.soft_delete(self.data.since)


class ReclaimRequest(Object, kw_only=True):
    """``before``: servers that were soft-deleted after this time are not reclaimed yet."""

    before: datetime.datetime


class Reclaim(Delete):
    """Delete a server whose reclaim interval is over, unless it is restored first."""

    name = "reclaim"
    rules = Rules(label="reclaim", vm_states=frozenset({states.SOFT_DELETED}), lock=False, launched=False)
    request_type = ReclaimRequest

    # Omit destroy_other: the guest is on one host only, because a soft delete ends an open move.
    destroy, let_go_of_volumes, close_shares, give_interfaces_back, drop_image, forget = (
        Delete.destroy, Delete.let_go_of_volumes, Delete.close_shares, Delete.give_interfaces_back, Delete.drop_image,
        Delete.forget)

    def accept(self, ctl: Acceptance, request: ReclaimRequest) -> None:  # type: ignore[override]
        since = ctl.instance.soft_deleted_at
        if since is None or since >= request.before:
            raise exception.Conflict(f"Instance {ctl.instance.uuid} is not to be reclaimed yet.")
        super().accept(ctl, request)
