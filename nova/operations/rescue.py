"""Rescue: start a server from another disk, with its own disks attached, until it is unrescued.

Unrescue, hard reboot, rebuild and delete remove the rescue disk."""

import contextlib

from nova import exception
from nova.objects.base import Object
from nova.objects.images.image import Image
from nova.objects.requirements import hardware
from nova.objects.requirements.hardware_values import BLOCK_BUSES
from nova.objects.requirements.properties import choice
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext
from nova.operations.framework.rules import ANY_TPM, Rules
from nova.operations.power import PowerAction

# Requirements for the rescue of a server that boots from a volume: properties of the rescue image, trait of the host.
_PROPERTIES = ("hw_rescue_device", "hw_rescue_bus")
_TRAIT = "COMPUTE_RESCUE_BFV"
SINCE = "rescued_at"  # key in system_metadata: time of the rescue


class RescueRequest(Object, kw_only=True):
    """``image``, ``kernel_id``, ``ramdisk_id``: images that the caller may see. None: the rescue image configured on
    the host, or the image of the server. ``volume_backed``: True if the server may boot from a volume (API 2.87)."""

    image: Image | None = None
    kernel_id: str = ""
    ramdisk_id: str = ""
    admin_pass: str | None = None
    volume_backed: bool = True


class RescueData(Object, kw_only=True):
    """``running``: the guest was running before the rescue."""

    host: str = ""
    image: Image | None = None
    kernel_id: str = ""
    ramdisk_id: str = ""
    running: bool = False


class _Rescue(PowerAction):
    def failed(self, ctl: Control, failure: Failure) -> None:
        """Set vm_state ERROR, unless the driver cannot rescue servers. A hard reboot recovers the server."""
        super().failed(ctl, failure)
        if failure.kind != exception.NotImplementedHere.__name__:
            ctl.set(vm_state=states.ERROR)


class Rescue(_Rescue):
    name = action = "rescue"
    rules = Rules(label="rescue", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.ERROR}), release=3,
                  without_tpm=ANY_TPM)
    request_type = RescueRequest
    data_type = RescueData
    task_state = states.RESCUING
    shuts_down = ends_consoles = True
    final = states.RESCUED

    def accept(self, ctl: Acceptance, request: RescueRequest) -> None:
        instance = ctl.instance
        if not instance.host:
            raise exception.InstanceNotReady(instance_id=instance.uuid)
        if instance.volume_backed:
            self.data.image = _image_beside_volumes(ctl, instance, request)
        if request.image is not None:
            _check_hardware(ctl, instance, request.image)
        self.data.running = instance.vm_state == states.ACTIVE
        ctl.keep_secret(request.admin_pass)

    @step(CONDUCTOR)
    def check(self, ctl: Control) -> None:
        ctl.check_secrets()

    @step("host", event="compute_rescue_instance", task_state=states.RESCUING, undo="put_back")
    @connects_volumes
    def rescue(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.cold_migration.revert(host.instance)  # a failed move may have renamed the disks
        timeout = host.shutdown_timeout if self.data.running else 0
        host.rescue(self.data.image, self.data.kernel_id, self.data.ramdisk_id, timeout)
        on_host.report_guest(host)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        ctl.set_items({SINCE: ctl.now().isoformat()})

    def put_back(self, host: HostContext) -> None:
        host.driver.rescue.end(host.instance)
        if self.data.running:
            host.connect_shares()
            host.driver.power.on(host.instance)
        with contextlib.suppress(exception.GuestNotFound):  # a server in ERROR may have no guest
            on_host.report_guest(host)


class Unrescue(_Rescue):
    name = action = "unrescue"
    rules = Rules(label="unrescue", vm_states=frozenset({states.RESCUED}))
    task_state = states.UNRESCUING
    ends_consoles = True
    final = states.ACTIVE

    @step("host", event="compute_unrescue_instance", task_state=states.UNRESCUING)
    @connects_volumes
    def unrescue(self, host: HostContext) -> None:
        on_host.connect(host)
        host.driver.rescue.end(host.instance)
        host.driver.power.on(host.instance)
        on_host.report_guest(host)

    def succeeded(self, ctl: Control) -> None:
        super().succeeded(ctl)
        ctl.set_items({SINCE: None})


def _check_hardware(ctl: Acceptance, instance: Instance, image: Image) -> None:
    """Check that the server's host can start it from this image. Raises InvalidInput for hardware that no host has,
    InstanceNotRescuable for hardware that this host lacks."""
    device, bus = (image.properties.get(name) for name in _PROPERTIES)
    if device or bus:
        # The server keeps its hardware and gets one more disk.
        kind = choice("hw_rescue_device", device or None, ("disk", "cdrom")) or (
            "cdrom" if image.disk_format == "iso" else "disk")
        choice("hw_rescue_bus", bus or None, BLOCK_BUSES[kind])
        needed = hardware.disk_traits([bus])
    else:
        needed = hardware.required_traits(instance.flavor, image) - hardware.required_traits(
            instance.flavor, instance.image, existing=True)
    missing = sorted(trait for trait in needed if not ctl.host_has_trait(trait))
    if missing:
        raise exception.InstanceNotRescuable(
            instance_id=instance.uuid, reason=f"its host lacks {', '.join(missing)}, which image {image.id} needs")


def _image_beside_volumes(ctl: Acceptance, instance: Instance, request: RescueRequest) -> Image:
    """Return the rescue image for a server that boots from a volume. Raises InstanceNotRescuable."""
    def refuse(reason: str) -> exception.InstanceNotRescuable:
        return exception.InstanceNotRescuable(instance_id=instance.uuid, reason=reason)

    if not request.volume_backed:
        raise refuse("Cannot rescue a volume-backed instance")
    image = request.image or instance.image
    if image is None or not all(image.properties.get(name) for name in _PROPERTIES):
        raise refuse(f"Cannot rescue a volume-backed instance with an image without {' and '.join(_PROPERTIES)}")
    if not ctl.host_has_trait(_TRAIT):
        raise refuse(f"Host unable to rescue a volume-backed instance ({_TRAIT})")
    return image
