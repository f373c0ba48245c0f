"""Reset state: set the state of a server as an administrator requests; supersedes and compensates any other operation.

An unconfirmed resize ends as if it were confirmed. A soft-deleted server is restored. A shelved server that still has
its host is unshelved."""

from nova.objects.base import Object
from nova.objects.servers.action import Failure
from nova.operations.framework.contexts import Acceptance, Control
from nova.operations.framework.rules import Rules
from nova.operations.resize import EndsMove
from nova.operations.shelve import HOST, SINCE


class ResetStateRequest(Object, kw_only=True):
    """``state``: the vm_state that the server gets when the request is accepted."""

    state: str


class ResetState(EndsMove):
    name, action = "reset_state", "resetState"
    rules = Rules(label="resetState", task_states=None, lock=False, launched=False, preempts=True, keeps_guest=True)
    request_type = ResetStateRequest

    def accept(self, ctl: Acceptance, request: ResetStateRequest) -> None:  # type: ignore[override]
        ctl.undelete()
        ctl.set(vm_state=request.state)
        super().accept(ctl, request)

    # Acceptance sets the states. Later requests may have changed them since, so the end does not set them again.
    def succeeded(self, ctl: Control) -> None:
        if ctl.instance.host:
            ctl.set_items({SINCE: None, HOST: None})

    def failed(self, ctl: Control, failure: Failure) -> None:
        self.superseded(ctl)
        self.succeeded(ctl)
