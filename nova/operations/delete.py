"""Delete: always converges, whatever state the server is in and whatever else is going on.

A host that is down is not waited for: the rows go, and the host removes the guest when it
returns (its reconciliation asks which of its guests still exist).
"""

from __future__ import annotations

from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import utcnow
from nova.operations.base import CONDUCTOR, Operation, Rules, step
from nova.operations.contexts import Control, Host


class Delete(Operation):
    name = "delete"
    action = "delete"
    rules = Rules(label="delete", task_states=None, launched=False, preempts=True)
    task_state = states.DELETING

    @step("host", event="compute_terminate_instance", task_state=states.DELETING, when_down="skip")
    def destroy(self, host: Host) -> None:
        host.driver.destroy(host.instance)
        host.network.unplug(host.instance)

    @step(CONDUCTOR)
    def forget(self, ctl: Control) -> None:
        if self.instance.launched_at is None:
            ctl.finish_io(failed=None)  # the build that we came in between never said so
        ctl.release_claim()
        ctl.release_addresses()
        ctl.release_quota()
        ctl.set(vm_state=states.DELETED, task_state=None, terminated_at=utcnow(), deleted=True,
                power_state=states.NOSTATE, admin_pass=None)

    def succeeded(self, ctl: Control) -> None:
        """forget() has set the final states."""

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.set(vm_state=states.ERROR, task_state=None)
        ctl.fault(failure)
