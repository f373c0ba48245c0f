"""Reset state: an administrator's word about a server; what was under way is compensated behind it.

A server that waited for a word about its resize does not wait any more: it stays where it is, as if it were confirmed.
"""

from __future__ import annotations

from nova.objects.action import Failure
from nova.objects.base import Object
from nova.operations.base import CONDUCTOR, Rules, step
from nova.operations.contexts import Acceptance, Control, Host
from nova.operations.resize import ConfirmResize, FinishData


class ResetStateRequest(Object, kw_only=True):
    """``state``: the vm_state that the server gets at once."""

    state: str


class ResetState(ConfirmResize):
    name = "reset_state"
    action = "resetState"
    rules = Rules(label="resetState", task_states=None, lock=False, launched=False, preempts=True)
    request_type = ResetStateRequest
    data_type = FinishData

    def accept(self, ctl: Acceptance, request: ResetStateRequest) -> None:  # type: ignore[override]
        ctl.set(vm_state=request.state)
        for migration in ctl.open_migrations():
            self.data.migration = migration.uuid

    @step(CONDUCTOR, when="migration")
    def look(self, ctl: Control) -> None:
        """Whether the move is open still, now that what was under way is compensated."""
        migration = ctl.migration(self.data.migration)
        if migration.open:
            self.take(ctl, migration)
            self.data.host = ctl.instance.host or ""
        else:
            self.data.migration = ""

    @step("source", when="migration", when_down="skip", evict=True)
    def forget(self, host: Host) -> None:
        super().forget(host)

    @step(CONDUCTOR, when="migration")
    def settle(self, ctl: Control) -> None:
        super().settle(ctl)

    # The states are set since its acceptance; they may be those of what was asked for meanwhile.
    def succeeded(self, ctl: Control) -> None:
        """The books are in order."""

    def failed(self, ctl: Control, failure: Failure) -> None:
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        """The move ends all the same."""
        if self.data.migration:
            self.look(ctl)
        if self.data.migration:
            self.settle_without_source(ctl)
