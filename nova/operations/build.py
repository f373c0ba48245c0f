"""Build: from an accepted request to a running guest.

place (conductor) → network, disks, start (on the host). Where the network back end tells when interfaces are plugged
the guest starts paused: → plugged (conductor) → go (on the host). A host that fails is cleaned up and the build goes on
with the next alternate; the last failure is the server's fault.

Volumes that an outside service keeps are made before (make_volumes), once, are made reachable from each host that is
tried (bind_volumes), and are the guest's when it runs (complete_volumes).
"""

from __future__ import annotations

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.scheduling import RequestSpec, Selection
from nova.objects.volume import VolumeEncryption
from nova.operations import on_host, placing, plugging
from nova.operations.base import CONDUCTOR, NETWORK, VOLUMES, Operation, Rules, Step, connects_volumes, step
from nova.operations.contexts import Control, Host

_EVENT = "compute__do_build_and_run_instance"


class BuildData(Object, kw_only=True):
    """``candidates``: the host in use first, then the alternates. ``tries`` counts hosts tried. ``plugs``: the
    interfaces whose plug the guest waits for. ``outside_interfaces``: an outside service keeps the interfaces.
    """

    spec: RequestSpec
    candidates: list[Selection] = []
    selected: bool = False
    host: str = ""
    tries: int = 0
    max_tries: int = 3
    # It has volumes that an outside service keeps; how often it has waited for new ones.
    outside_volumes: bool = False
    looks: int = 0
    # Of new volumes that are encrypted, by the ids of their devices: only whoever makes one has its user's token.
    encryptions: dict[str, VolumeEncryption] = {}
    plugs: list[str] = []
    outside_interfaces: bool = False


class Build(Operation):
    name = "build"
    action = "create"
    rules = Rules(label="create", vm_states=frozenset({states.BUILDING}), launched=False)
    data_type = BuildData
    task_state = states.SCHEDULING
    retry_from = "place"
    kind = "build"
    may_be_followed = False

    @step(CONDUCTOR, undo="unmake_volumes", external=VOLUMES, when="outside_volumes")
    def make_volumes(self, ctl: Control) -> None:
        self.data.looks += 1
        ctl.outside_volumes.make(self.data.looks - 1, self.data.encryptions)

    @step(CONDUCTOR, undo="unplace", asks_scheduler=True)
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
        ctl.interfaces.take()
        ctl.volumes.connect(selection.host)
        ctl.set(host=selection.host, node=selection.node, availability_zone=selection.availability_zone)

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="outside_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.connect(self.data.host)

    @step(CONDUCTOR, undo="give_interfaces_back", external=NETWORK, when="outside_interfaces")
    def interfaces(self, ctl: Control) -> None:
        ctl.outside_interfaces.take(self.data.host)

    @step("host", event=_EVENT, task_state=states.NETWORKING, undo="unplug", evict=True)
    def network(self, host: Host) -> None:
        host.network.plug(host.instance, host.rules)

    @step("host", event=_EVENT, task_state=states.BLOCK_DEVICE_MAPPING, undo="wipe", evict=True)
    @connects_volumes
    def disks(self, host: Host) -> None:
        host.prepare_disks()
        host.connect_volumes()

    @step("host", event=_EVENT, task_state=states.SPAWNING, evict=True, results=("plugs",))
    @connects_volumes
    def start(self, host: Host) -> None:
        host.connect_volumes()
        plugging.start(host, host.spawn)
        on_host.report_guest(host)

    @step(CONDUCTOR, when="plugs")
    def plugged(self, ctl: Control) -> None:
        plugging.wait(ctl, self.data.plugs)

    @step("host", event=_EVENT, task_state=states.SPAWNING, evict=True, when="plugs")
    def go(self, host: Host) -> None:
        plugging.go(host)

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def complete_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.complete()

    # --- compensations ---------------------------------------------------------------------------
    def unplug(self, host: Host) -> None:
        host.network.unplug(host.instance)

    def wipe(self, host: Host) -> None:
        host.driver.destroy(host.instance)
        host.disconnect_volumes()

    def unbind_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.disconnect(self.data.host)

    def give_interfaces_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.release()
        ctl.set(network_info=[])

    def unplace(self, ctl: Control) -> None:
        data: BuildData = self.data
        ctl.finish_io(failed=None if self.taken_over else True)
        ctl.release_claim()
        ctl.volumes.disconnect(self.data.host)
        ctl.set(host=None, node=None, availability_zone=self.instance.pinned_availability_zone, numa_topology=None,
                pci_devices=None)
        placing.rule_out(data)

    def unmake_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.unmake()

    def take_back(self, of: Step, ctl: Control) -> None:
        """Of a build that has ended nothing stays outside: that a volume waits for another host, it need not."""
        if of.name == "interfaces":
            ctl.outside_interfaces.release()
            return
        if not ctl.instance.deleted:  # what has an attachment was given to the server since
            ctl.instance.block_devices = [device for device in ctl.instance.block_devices if not device.attachment_id]
        ctl.outside_volumes.unmake()

    # --- decisions ---------------------------------------------------------------------------------
    def may_retry(self, failure: Failure) -> bool:
        return placing.is_tried_again(self.data, failure)

    def succeeded(self, ctl: Control) -> None:
        ctl.finish_io(failed=False, node_uuid=self.data.candidates[0].node_uuid)
        ctl.volumes.complete()
        ctl.set(vm_state=states.ACTIVE, task_state=None, launched_at=ctl.now(), progress=0)

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.interfaces.release()
        ctl.volumes.release()
        ctl.set(vm_state=states.ERROR, task_state=None)
        ctl.fault(failure)
