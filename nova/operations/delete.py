"""Delete: remove a server in any state. A delete always completes, and supersedes any other operation.

The superseded operation is compensated first. The delete does not wait for a host that is down: the rows are deleted,
and an eviction makes the host remove the guest when it returns."""

from nova.objects.base import Object
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, IMAGES, NETWORK, SHARES, VOLUMES, Operation, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules
from nova.operations.shelve import IMAGE

_EVENT = "compute_terminate_instance"


class DeleteData(Object, kw_only=True):
    """``other``: the second possible host of a server with an unconfirmed migration; ``moved``: this migration exists.
    ``outside_interfaces``: an external service manages the interfaces."""

    host: str = ""
    other: str = ""
    moved: bool = False
    outside_interfaces: bool = False
    shelved_image: str = ""  # id of the image that shelving created
    # True if the server has volumes of Cinder.
    outside_volumes: bool = False
    shares: bool = False


class Delete(Operation):
    name = action = "delete"
    rules = Rules(label="delete", task_states=None, launched=False, preempts=True, yields_to=frozenset())
    data_type = DeleteData
    task_state = states.DELETING
    kind = "urgent"
    ends_consoles = True
    may_be_followed = False

    def accept(self, ctl: Acceptance, request: Object) -> None:
        self.data.outside_volumes = ctl.volumes.are_outside
        self.data.shares = bool(self.instance.shares)
        self.data.shelved_image = self.instance.system_metadata.get(IMAGE, "")
        some = bool(self.instance.network_info) or self.instance.requested_networks != []
        self.data.outside_interfaces = ctl.network_is_outside and some
        for migration in ctl.open_migrations():
            self.data.moved = True
            hosts = {migration.source_compute, migration.dest_compute} - {self.data.host, ""}
            self.data.other = min(hosts, default=self.data.other)

    def relocate(self) -> bool:
        return False  # both possible hosts remove the guest in any case

    @step("host", event=_EVENT, task_state=states.DELETING, when_down="skip", evict=True)
    def destroy(self, host: HostContext) -> None:
        self._remove(host)

    @step("other", event=_EVENT, task_state=states.DELETING, when_down="skip", evict=True)
    def destroy_other(self, host: HostContext) -> None:
        self._remove(host)

    def _remove(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance)
        # Also remove disks that an interrupted move renamed and did not rename back.
        host.driver.guests.remove_orphan(host.instance.uuid)
        on_host.disconnect(host)

    @step(CONDUCTOR, external=VOLUMES, when="outside_volumes")
    def let_go_of_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.release()

    @step(CONDUCTOR, external=SHARES, deferrable=True, when="shares")
    def close_shares(self, ctl: Control) -> None:
        ctl.outside_shares.release()

    @step(CONDUCTOR, external=NETWORK, when="outside_interfaces")
    def give_interfaces_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.release()

    @step(CONDUCTOR, external=IMAGES, deferrable=True, when="shelved_image")
    def drop_image(self, ctl: Control) -> None:
        ctl.images.delete(self.data.shelved_image)

    @step(CONDUCTOR)
    def forget(self, ctl: Control) -> None:
        ctl.release_claim()
        if self.data.moved:
            ctl.close_migrations()
        ctl.interfaces.release()
        ctl.release_quota()
        ctl.volumes.release()  # after release_quota(), because rows of quotas are locked before those of volumes
        ctl.set(vm_state=states.DELETED, task_state=None, terminated_at=ctl.now(), deleted=True,
                power_state=states.NOSTATE, user_data=None, personality=[], numa_topology=None, pci_devices=None,
                device_addresses=None, shares=None, soft_deleted_at=None, encrypted_tpm_secret=None)

    def succeeded(self, ctl: Control) -> None:
        """Do nothing: forget() has set the final state."""

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.undelete()
        ctl.set(vm_state=states.ERROR, task_state=None)
        ctl.fault(failure)
