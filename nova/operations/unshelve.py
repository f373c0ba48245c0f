"""Unshelve: run a shelved server again, on its host or, if that was released, on another host.

On its host: power_on. Without a host: find_image, place (conductor) → network, disks, start (host), from the image made
by shelving. If the network back end reports when interfaces are plugged, plugged (conductor) → go (host) follow. At the
end mark_unshelved and drop_image (conductor). After mark_unshelved no step is compensated, even if the image cannot be
deleted."""

import functools

from nova import exception
from nova.objects.base import Object
from nova.objects.images.image import Image
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.operations.framework import on_host, placing, plugging
from nova.operations.framework.base import CONDUCTOR, IMAGES, NETWORK, VOLUMES, Step, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import Rules
from nova.operations.shelve import HOST, IMAGE, SINCE

_EVENT = "compute_unshelve_instance"
_SHELF = frozenset({states.SHELVED, states.SHELVED_OFFLOADED})


class UnshelveRequest(Object, kw_only=True):
    """``unpin``: remove the server's pin to a zone; ``availability_zone``: the zone to which the server is pinned."""

    availability_zone: str | None = None
    unpin: bool = False
    host: str | None = None

    @property
    def moves(self) -> bool:
        return self.unpin or self.availability_zone is not None or self.host is not None


class UnshelveData(placing.RetryData, kw_only=True):
    """``offloaded``: the server has no host; ``on_host``: it has one. ``saved_in``: id of the image made by shelving;
    ``image``: that image; ``drops``: id of the image to delete at the end. ``pinned``: the requested availability zone.
    ``binds_…``: the server has volumes or interfaces of an external service. ``settled``: mark_unshelved is done."""

    offloaded: bool = False
    on_host: bool = False
    saved_in: str = ""
    drops: str = ""
    image: Image | None = None
    pinned: str | None = None
    binds_volumes: bool = False
    binds_interfaces: bool = False
    settled: bool = False


class Unshelve(placing.PlacedOperation):
    name = action = "unshelve"
    rules = Rules(label="unshelve", vm_states=_SHELF | {states.ACTIVE, states.ERROR}, release=3)
    request_type = UnshelveRequest
    data_type = UnshelveData
    task_state = states.UNSHELVING
    ends_consoles = True
    point_of_no_return = "settle"

    @classmethod
    def begin(cls, instance: Instance, request: UnshelveRequest) -> dict[str, object]:
        return {"host": instance.host or "", "spec": placing.empty_spec(instance)}

    def accept(self, ctl: Acceptance, request: UnshelveRequest) -> None:
        instance, data = self.instance, self.data
        # A server that released its host is still shelved, even if an administrator reset its state.
        if instance.vm_state not in _SHELF and (instance.host or SINCE not in instance.system_metadata):
            raise exception.InstanceInvalidState(method=self.rules.label, instance_uuid=instance.uuid, attr="vm_state",
                                                 state=instance.vm_state)
        if request.moves and instance.host:
            raise exception.Conflict(f"Instance {instance.uuid} is still on its host: a zone or a host can be selected "
                                     "only in vm_state shelved_offloaded.")
        data.drops = instance.system_metadata.get(IMAGE, "")
        data.pinned = instance.pinned_availability_zone
        data.on_host = bool(instance.host)
        if data.on_host:
            return
        if request.host and not ctl.compute_exists(request.host):
            raise exception.InvalidInput(f"Compute host {request.host} could not be found.")
        if request.availability_zone is not None:
            ctl.check_zone(request.availability_zone)
        if request.unpin or request.availability_zone is not None:
            data.pinned = request.availability_zone
        data.offloaded, data.saved_in = True, data.drops
        data.spec = ctl.request_spec(instance.flavor, request.host)
        data.spec.availability_zone, data.spec.release = data.pinned, self.rules.release
        data.max_tries = 1 + data.spec.alternates
        data.binds_volumes = ctl.volumes.are_outside
        data.binds_interfaces = ctl.network_is_outside and bool(instance.network_info)

    def relocate(self) -> bool:
        return False  # no queued operation gives an offloaded server a host

    @step(CONDUCTOR, event="get_image_info", external=IMAGES, when="saved_in")
    def find_image(self, ctl: Control) -> None:
        image = ctl.images.get(self.data.saved_in)
        if image.status != "active":
            raise exception.ImageNotActive(image_id=image.id)
        self.data.image = image

    @step(CONDUCTOR, undo="unplace", calls_scheduler=True, event="schedule_instances", when="offloaded")
    def place(self, ctl: Control) -> None:
        data: UnshelveData = self.data
        selection = placing.next_host(ctl, data)
        data.host = selection.host
        ctl.claim(selection, data.spec)
        ctl.finish_io(failed=None, node_uuid=selection.node_uuid)
        plugging.forget(ctl)
        ctl.volumes.bind(selection.host)
        ctl.set(host=selection.host, node=selection.node, availability_zone=selection.availability_zone)

    @step(CONDUCTOR, undo="unbind_volumes", external=VOLUMES, when="binds_volumes")
    def bind_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.connect(self.data.host)

    @step(CONDUCTOR, undo="unbind_interfaces", external=NETWORK, when="binds_interfaces")
    def bind_interfaces(self, ctl: Control) -> None:
        ctl.outside_interfaces.bind(self.data.host)

    @step("host", event=_EVENT, task_state=states.SPAWNING, undo="unplug", evict=True, when="offloaded")
    def network(self, host: HostContext) -> None:
        host.network.plug(host.instance, host.rules)

    @step("host", event=_EVENT, task_state=states.SPAWNING, undo="wipe", evict=True, when="offloaded")
    @connects_volumes
    def disks(self, host: HostContext) -> None:
        host.prepare_disks(self.data.image)
        host.connect_volumes()

    @step("host", event=_EVENT, task_state=states.SPAWNING, evict=True, results=("plugs",), when="offloaded")
    @connects_volumes
    def start(self, host: HostContext) -> None:
        host.connect_volumes()
        plugging.start(host, functools.partial(host.spawn, root=self.data.image))
        on_host.report_guest(host)

    @step("host", event="compute_start_instance", task_state=states.POWERING_ON, results=("plugs",), when="on_host")
    @connects_volumes
    def power_on(self, host: HostContext) -> None:
        on_host.connect(host)
        plugging.start(host, functools.partial(host.driver.power.on, host.instance))
        on_host.report_guest(host)

    plugged = plugging.plugged

    @step("host", event=_EVENT, task_state=states.SPAWNING, evict=True, when="plugs")
    def go(self, host: HostContext) -> None:
        plugging.go(host)

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="binds_volumes")
    def complete_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.complete()

    @step(CONDUCTOR, journaled_as="settle")
    def mark_unshelved(self, ctl: Control) -> None:
        ctl.volumes.complete()
        ctl.set_items({SINCE: None, HOST: None})
        ctl.set(vm_state=states.ACTIVE, launched_at=ctl.now(), progress=0, pinned_availability_zone=self.data.pinned)
        self.data.settled = True

    @step(CONDUCTOR, external=IMAGES, deferrable=True, when="drops")
    def drop_image(self, ctl: Control) -> None:
        ctl.images.delete(self.data.drops)

    def unbind_interfaces(self, ctl: Control) -> None:
        ctl.outside_interfaces.unbind()

    def unplace(self, ctl: Control) -> None:
        ctl.release_claim()
        ctl.volumes.unbind()
        ctl.set(host=None, node=None, numa_topology=None, pci_devices=None, power_state=states.SHUTDOWN)
        placing.rule_out(self.data)

    def clean_up(self, of: Step, ctl: Control) -> None:
        """Bind volumes and interfaces to the current host of the server, after a call that took effect late."""
        if of.name == "bind_interfaces" and ctl.instance.host:
            ctl.outside_interfaces.bind(ctl.instance.host)
        elif of.name != "bind_volumes" or not ctl.instance.host:
            super().clean_up(of, ctl)

    def succeeded(self, ctl: Control) -> None:
        ctl.set_items({IMAGE: None})
        ctl.set(task_state=None)

    def failed(self, ctl: Control, failure: Failure) -> None:
        ctl.set(task_state=None)
        if failure.kind == exception.NoValidHost.__name__:
            return  # record no fault: a later request may find a host
        ctl.fault(failure)
        if failure.kind == exception.ImageNotFound.__name__ and not self.data.settled:
            ctl.set(vm_state=states.ERROR)
