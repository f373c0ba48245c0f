"""Build: create a server, from the accepted request to the running guest.

place (conductor) → network, disks, start (on the host). If the network back end reports when interfaces are plugged,
the guest starts paused: → plugged (conductor) → go (on the host). A host that fails is cleaned up and the build
continues on the next alternate host. If no host is left, the newest failure becomes the server's fault.

Volumes of an external service are created once, before the first host is selected (make_volumes), connected to each
host that is tried (bind_volumes), and marked as attached when the guest runs (complete_volumes)."""

from nova import exception
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.volumes.volume import VolumeEncryption
from nova.operations.framework import on_host, placing, plugging
from nova.operations.framework.base import CONDUCTOR, NETWORK, VOLUMES, Step, connects_volumes, step
from nova.operations.framework.contexts import Control, HostContext
from nova.operations.framework.rules import Rules

_EVENT = "compute__do_build_and_run_instance"


class BuildData(placing.RetryData, kw_only=True):
    """``outside_volumes``: the server has volumes of an external service; ``polls`` also counts the waits until new
    volumes are available. ``outside_interfaces``: the interfaces are external."""

    outside_volumes: bool = False
    # Encryption of new volumes by device id. Stored, since it can be read only with the user's token of the request.
    encryptions: dict[str, VolumeEncryption] = {}
    outside_interfaces: bool = False


class Build(placing.PlacedOperation):
    name, action = "build", "create"
    rules = Rules(label="create", vm_states=frozenset({states.BUILDING}), launched=False)
    data_type = BuildData
    task_state = states.SCHEDULING
    may_be_followed = False

    @step(CONDUCTOR, undo="unmake_volumes", external=VOLUMES, when="outside_volumes")
    def make_volumes(self, ctl: Control) -> None:
        self.data.polls += 1
        ctl.outside_volumes.make(self.data.polls - 1, self.data.encryptions)

    @step(CONDUCTOR, undo="unplace", calls_scheduler=True)
    def place(self, ctl: Control) -> None:
        data: BuildData = self.data
        ctl.check_secrets()
        if not data.selected:
            ctl.group_hosts(data.spec)
            placing.select(ctl, data, data.spec)
        if not data.candidates:
            raise exception.MaxRetriesExceeded(instance_uuid=self.instance.uuid)
        selection = data.candidates[0]
        data.host = selection.host
        ctl.claim(selection, data.spec)
        plugging.forget(ctl)
        ctl.interfaces.take(selection.host)
        ctl.volumes.bind(selection.host)
        ctl.set(host=selection.host, node=selection.node, availability_zone=selection.availability_zone)

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.connect(self.data.host)

    @step(CONDUCTOR, undo="give_interfaces_back", external=NETWORK, when="outside_interfaces")
    def interfaces(self, ctl: Control) -> None:
        ctl.outside_interfaces.take(self.data.host)

    @step("host", event=_EVENT, task_state=states.NETWORKING, undo="unplug", evict=True)
    def network(self, host: HostContext) -> None:
        host.network.plug(host.instance, host.rules)

    @step("host", event=_EVENT, task_state=states.BLOCK_DEVICE_MAPPING, undo="wipe", evict=True)
    @connects_volumes
    def disks(self, host: HostContext) -> None:
        host.prepare_disks()
        host.connect_volumes()

    @step("host", event=_EVENT, task_state=states.SPAWNING, evict=True, results=("plugs",))
    @connects_volumes
    def start(self, host: HostContext) -> None:
        host.connect_volumes()
        plugging.start(host, host.spawn)
        on_host.report_guest(host)

    plugged = plugging.plugged

    @step("host", event=_EVENT, task_state=states.SPAWNING, evict=True, when="plugs")
    def go(self, host: HostContext) -> None:
        plugging.go(host)

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def complete_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.complete()

    def give_interfaces_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.release()
        ctl.set(network_info=[])

    def unplace(self, ctl: Control) -> None:
        ctl.finish_io(failed=None if self.taken_over else True)
        ctl.release_claim()
        ctl.volumes.unbind()
        ctl.set(host=None, node=None, availability_zone=self.instance.pinned_availability_zone, numa_topology=None,
                pci_devices=None, power_state=states.NOSTATE)
        placing.rule_out(self.data)

    def unmake_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.unmake()

    def clean_up(self, of: Step, ctl: Control) -> None:
        """Remove all resources that the ended build created in external services, also the volumes."""
        if of.name == "interfaces":
            ctl.outside_interfaces.release()
            return
        if not ctl.instance.deleted:  # volumes with an attachment were attached after the build
            ctl.instance.block_devices = [device for device in ctl.instance.block_devices if not device.attachment_id]
        ctl.outside_volumes.unmake()

    def succeeded(self, ctl: Control) -> None:
        ctl.finish_io(failed=False, node_uuid=self.data.candidates[0].node_uuid)
        ctl.volumes.complete()
        ctl.set(vm_state=states.ACTIVE, task_state=None, launched_at=ctl.now(), progress=0)

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.interfaces.release()
        ctl.volumes.release()
        ctl.set(vm_state=states.ERROR, task_state=None)
        ctl.fault(failure)
