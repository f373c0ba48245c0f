"""Reset state: an administrator's word about a server; what was under way is compensated behind it."""

from __future__ import annotations

from nova.objects.base import Object
from nova.operations.base import Operation, Rules
from nova.operations.contexts import Acceptance, Control


class ResetStateRequest(Object, kw_only=True):
    """``state``: the vm_state that the server gets at once."""

    state: str


class ResetState(Operation):
    name = "reset_state"
    action = "resetState"
    rules = Rules(label="resetState", task_states=None, lock=False, launched=False, preempts=True)
    request_type = ResetStateRequest

    def accept(self, ctl: Acceptance, request: ResetStateRequest) -> None:
        ctl.set(vm_state=request.state)

    def succeeded(self, ctl: Control) -> None:
        """The states are set since its acceptance; they may be those of what was asked for meanwhile."""
