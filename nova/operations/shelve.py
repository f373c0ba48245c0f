"""Shelve: save a stopped server in an image and release its host.

Shelve: make_image (conductor) → halt, capture, upload (host) → mark_shelved (conductor). Then, immediately or later as
ShelveOffload: destroy (host) → unbind_volumes, unbind_interfaces, forget (conductor). At the end drop_former
(conductor) deletes the image of a previous shelving that could not be deleted earlier. A server that boots from a
volume needs no image. After mark_shelved the server can be restored from the image, so no step is compensated."""

from typing import ClassVar

from nova.objects.base import Object
from nova.objects.servers import states
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, IMAGES, NETWORK, VOLUMES, Operation, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import ANY_TPM, Rules
from nova.operations.power import FollowsPowerState
from nova.operations.snapshot import SavedData, Saving, capturing, uploading

IMAGE, SINCE, HOST = "shelved_image_id", "shelved_at", "shelved_host"  # keys in system_metadata of a shelved server

_NAME_ROOM = 247  # maximum number of characters of the server's name in the image's name, which is limited to 255

_SHELVE, _OFFLOAD = "compute_shelve_instance", "compute_shelve_offload_instance"


class ShelveRequest(Object, kw_only=True):
    """``offload``: release the host immediately; None: as configured by [DEFAULT]shelved_offload_time."""

    offload: bool | None = None


class ShelveData(SavedData, kw_only=True):
    """``offload``: release the host, too. ``unbinds_…``: the server has volumes or interfaces of an external service.
    ``settled``: the server is shelved; ``former``: id of the remaining image of a previous shelving."""

    offload: bool = False
    settled: bool = False
    former: str = ""
    unbinds_volumes: bool = False
    unbinds_interfaces: bool = False


class _Offloading(Operation):
    """The steps that remove a saved server from its host."""

    data_type: ClassVar[type[Object]] = ShelveData
    ends_consoles = True

    def superseded(self, ctl: Control) -> None:
        """Complete the offload: the guest may be removed already, and the server can be restored from its image."""
        if self.data.offload and self.data.settled:
            ctl.evict(self.data.host, keep_disks=False)
            self._leave(ctl)

    def _begin_offload(self, ctl: Acceptance) -> None:
        self.data.offload = True
        self.data.unbinds_volumes = ctl.volumes.are_outside
        self.data.unbinds_interfaces = ctl.network_is_outside and bool(self.instance.network_info)

    @step("host", event=_OFFLOAD, task_state=states.SHELVING_OFFLOADING, when="offload", when_down="skip", evict=True)
    def destroy(self, host: HostContext) -> None:
        host.driver.guests.destroy(host.instance)
        on_host.disconnect(host)

    @step(CONDUCTOR, external=VOLUMES, when="unbinds_volumes")
    def unbind_volumes(self, ctl: Control) -> None:
        ctl.outside_volumes.disconnect()

    @step(CONDUCTOR, external=NETWORK, when="unbinds_interfaces")
    def unbind_interfaces(self, ctl: Control) -> None:
        ctl.outside_interfaces.unbind()

    @step(CONDUCTOR, when="offload")
    def forget(self, ctl: Control) -> None:
        self._leave(ctl)
        ctl.set(vm_state=states.SHELVED_OFFLOADED)

    def _leave(self, ctl: Control) -> None:
        ctl.release_claim()
        ctl.volumes.unbind()
        ctl.set(host=None, node=None, numa_topology=None, pci_devices=None, power_state=states.SHUTDOWN)


class Shelve(_Offloading, Saving, FollowsPowerState):
    name = action = "shelve"
    rules = Rules(label="shelve", without_shares=True, without_tpm=ANY_TPM, host="needed", release=3,
                  vm_states=frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED}))
    request_type = ShelveRequest
    task_state = states.SHELVING
    shuts_down = True
    point_of_no_return = "settle"

    def accept(self, ctl: Acceptance, request: ShelveRequest) -> None:
        instance = self.instance
        if not instance.volume_backed:
            self.data.image = ctl.images.describe(f"{(instance.display_name or '')[:_NAME_ROOM]}-shelved", {})
            self.data.former = instance.system_metadata.get(IMAGE, "")
            # The image belongs to the server's project, even if an administrator of another project shelves the server.
            self.data.image.owner, self.data.image.visibility = instance.project_id, "private"
            self.data.image.members = []
        wanted = ctl.offloads_at_once if request.offload is None else request.offload
        self.data.offload = False
        if instance.volume_backed or wanted:
            self._begin_offload(ctl)

    @step(CONDUCTOR, undo="unmake_image", external=IMAGES, when="image")
    def make_image(self, ctl: Control) -> None:
        ctl.images.make(self.data.image)

    @step("host", event=_SHELVE, task_state=states.SHELVING, undo="restart")
    def halt(self, host: HostContext) -> None:
        clean = host.instance.vm_state == states.ACTIVE
        host.driver.power.off(host.instance, timeout=host.shutdown_timeout if clean else 0)
        on_host.report_power(host)

    capture = capturing(_SHELVE, states.SHELVING_IMAGE_PENDING_UPLOAD, when="image")
    upload = uploading(_SHELVE, states.SHELVING_IMAGE_UPLOADING, when="image")

    @step(CONDUCTOR, journaled_as="settle")
    def mark_shelved(self, ctl: Control) -> None:
        instance, image = ctl.instance, self.data.image
        ctl.set_items({SINCE: ctl.now().isoformat(), HOST: instance.host or "", **({IMAGE: image.id} if image else {})})
        ctl.set(vm_state=states.SHELVED)
        self.data.settled = True

    destroy, unbind_volumes, unbind_interfaces, forget = (
        _Offloading.destroy, _Offloading.unbind_volumes, _Offloading.unbind_interfaces, _Offloading.forget)

    @step(CONDUCTOR, external=IMAGES, deferrable=True, when="former")
    def drop_former(self, ctl: Control) -> None:
        ctl.images.delete(self.data.former)

    @connects_volumes
    def restart(self, host: HostContext) -> None:
        """Start the guest again if it was running. The content of its memory is lost."""
        if host.instance.vm_state in (states.ACTIVE, states.PAUSED):
            on_host.connect(host)
            host.driver.power.on(host.instance)
        on_host.report_power(host)


class ShelveOffload(_Offloading):
    name, action = "shelve_offload", "shelveOffload"
    rules = Rules(label="shelveOffload", vm_states=frozenset({states.SHELVED}))
    task_state = states.SHELVING_OFFLOADING

    def accept(self, ctl: Acceptance, request: Object) -> None:
        self.data.settled = True
        self._begin_offload(ctl)
