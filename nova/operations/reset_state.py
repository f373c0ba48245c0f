"""Reset state: an administrator's word about a server; what was under way is compensated behind it.

A server that waited for a word about its resize does not wait any more: it stays where it is, as if it were confirmed.
One that was soft-deleted is back, and one that was on the shelf is not any more if it has its host still.
"""

from __future__ import annotations

from nova.objects.action import Failure
from nova.objects.base import Object
from nova.operations.base import Rules
from nova.operations.contexts import Acceptance, Control
from nova.operations.resize import EndsMove
from nova.operations.shelve import HOST, SINCE


class ResetStateRequest(Object, kw_only=True):
    """``state``: the vm_state that the server gets at once."""

    state: str


class ResetState(EndsMove):
    name = "reset_state"
    action = "resetState"
    rules = Rules(label="resetState", task_states=None, lock=False, launched=False, preempts=True)
    request_type = ResetStateRequest

    def accept(self, ctl: Acceptance, request: ResetStateRequest) -> None:  # type: ignore[override]
        ctl.undelete()
        ctl.set(vm_state=request.state)
        super().accept(ctl, request)

    # The states are set since its acceptance; they may be those of what was asked for meanwhile.
    def succeeded(self, ctl: Control) -> None:
        if ctl.instance.host:
            ctl.set_items({SINCE: None, HOST: None})

    def failed(self, ctl: Control, failure: Failure) -> None:
        self.superseded(ctl)
        self.succeeded(ctl)
