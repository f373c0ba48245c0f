"""Rebuild: a server gets new disks, from the same image or from another one; its id, host and addresses stay.

check (conductor; the scheduler says whether the host may have another image) → replace, start (host). The server keeps
its old disks until the new ones are made: one whose rebuild failed before has the old image, and a hard reboot starts
it from that; later on it has the new one.

A volume that the server boots from is made anew, too (API 2.93); the embedded back end keeps what was in it until the
rebuild has succeeded. An outside service writes it while no host has it: let_go (host) → free, write, connect
(conductor) come before replace, and complete (conductor) at the end.
"""

from __future__ import annotations

import contextlib

import msgspec
from msgspec import UNSET, UnsetType

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.external_event import FAILED
from nova.objects.guest import PASSWORD_KEYS
from nova.objects.image import METADATA, Image, check_image_fits, metadata_of
from nova.objects.instance import BlockDevice, Instance, Personality, root_volume
from nova.objects.requirements.guest_numa import guest_topology
from nova.objects.requirements.requested_resources import requested_resources
from nova.objects.scheduling import RequestSpec
from nova.objects.volume import VolumeContent
from nova.operations import on_host
from nova.operations.base import CONDUCTOR, VOLUMES, Operation, Rules, Step, Wait, connects_volumes, event_key, step
from nova.operations.contexts import Acceptance, Control, Desk, Host

_EVENT = "compute_rebuild_instance"
# What a request may change besides the image, by the names of the server's columns.
_COLUMNS = ("display_name", "display_description", "hostname", "access_ip_v4", "access_ip_v6", "disk_config",
            "metadata", "user_data", "trusted_certs")


class RebuildRequest(Object, kw_only=True):
    """``image``, ``kernel_id`` and ``ramdisk_id``: the caller was shown them. What is UNSET stays as it is."""

    image: Image
    kernel_id: str = ""
    ramdisk_id: str = ""
    admin_pass: str | None = None
    keep_ephemerals: bool = False
    # A volume that the server boots from is made anew; else only its own image is taken.
    reimage: bool = True
    personality: list[Personality] = []
    key_name: str | UnsetType | None = UNSET
    display_name: str | UnsetType = UNSET
    display_description: str | UnsetType | None = UNSET
    hostname: str | UnsetType = UNSET
    access_ip_v4: str | UnsetType = UNSET
    access_ip_v6: str | UnsetType = UNSET
    disk_config: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    user_data: str | UnsetType | None = UNSET
    trusted_certs: list[str] | UnsetType | None = UNSET


class ImageOfServer(Object, kw_only=True):
    """The columns of a server that say from which image its disks are."""

    image: Image | None = None
    image_ref: str = ""
    kernel_id: str = ""
    ramdisk_id: str = ""
    system_metadata: dict[str, str] = {}


class RebuildData(Object, kw_only=True):
    """``spec``: what the scheduler is asked about another image, until it has answered (``selected``).

    ``token`` stands for the new disks; ``replaced``: the server has them. ``off``: it is stopped afterwards, as it was.
    ``volume``: what was in the volume that it boots from; ``outside_volumes``: an outside service makes that anew.
    """

    host: str = ""
    spec: RequestSpec | None = None
    selected: bool = False
    keep_ephemerals: bool = False
    token: str = ""
    off: bool = False
    replaced: bool = False
    volume: VolumeContent | None = None
    outside_volumes: bool = False
    before: ImageOfServer = msgspec.field(default_factory=ImageOfServer)


class Rebuild(Operation):
    name = action = "rebuild"
    rules = Rules(label="rebuild", vm_states=frozenset({states.ACTIVE, states.STOPPED, states.ERROR}), release=3,
                  without_shares=True)
    request_type = RebuildRequest
    data_type = RebuildData
    task_state = states.REBUILDING
    kind = "build"
    shuts_down = ends_consoles = True

    def prepare(self, desk: Desk, request: RebuildRequest) -> None:
        root = root_volume(self.instance.block_devices)
        if root is not None and request.reimage:
            desk.check_not_shared(root)

    def accept(self, ctl: Acceptance, request: RebuildRequest) -> None:
        instance, image = ctl.instance, request.image
        if not instance.host:
            raise exception.InstanceNotReady(instance_id=instance.uuid)
        self.data.before = msgspec.convert(instance, ImageOfServer, from_attributes=True)
        if instance.volume_backed and not request.reimage:
            if instance.image is None or instance.image.id != image.id:
                raise exception.InvalidInput("Unable to rebuild with a different image for a volume-backed server.")
        else:
            check_image_fits(instance.flavor, image, instance.volume_backed)
            _check_claim(instance, image)
            self._give_image(ctl, request)
            if instance.volume_backed:
                self.data.volume = ctl.reimage(image)
                self.data.outside_volumes = ctl.has_outside_volumes()
        self.data.token = ctl.action_uuid
        self.data.off = instance.vm_state == states.STOPPED
        self.data.selected = self.data.spec is None
        self._change(ctl, request)
        ctl.keep_secret(request.admin_pass)

    def _give_image(self, ctl: Acceptance, request: RebuildRequest) -> None:
        instance, image, had = ctl.instance, request.image, ctl.instance.image
        if had is None or had.id != image.id:
            wanted = requested_resources(instance.flavor, image).required
            known = requested_resources(instance.flavor, had, existing=True).required
            self.data.spec = RequestSpec(
                instance_uuids=[instance.uuid], project_id=instance.project_id, user_id=instance.user_id,
                flavor=instance.flavor, image=image, required_traits=sorted(set(wanted) - set(known)),
                requested_host=instance.host, requested_node=instance.node, alternates=0, in_place=True)
        kept = {name: value for name, value in instance.system_metadata.items() if not _goes_with_the_disks(name)}
        ctl.set(image=image, image_ref="" if instance.volume_backed else image.id, kernel_id=request.kernel_id,
                ramdisk_id=request.ramdisk_id, system_metadata=kept | metadata_of(image))

    def _change(self, ctl: Acceptance, request: RebuildRequest) -> None:
        changes = {name: value for name in _COLUMNS if (value := getattr(request, name)) is not UNSET}
        ctl.check_amounts(changes.get("metadata", {}), request.personality)
        if request.key_name is not UNSET:
            changes["key"] = ctl.key(request.key_name) if request.key_name else None
        mandatory = ctl.instance.image is not None and (
            ctl.instance.image.properties.get("img_config_drive") == "mandatory")
        ctl.set(personality=request.personality, config_drive=ctl.instance.config_drive or mandatory, progress=0,
                **changes)

    # --- steps -----------------------------------------------------------------------------------------
    @step(CONDUCTOR, asks_scheduler=True, event="rebuild_server")
    def check(self, ctl: Control) -> None:
        """Whether the host may have the server with its new image; it claims nothing, for it has it already."""
        ctl.check_secrets()
        if not self.data.selected:
            ctl.select(self.data.spec)
            self.data.selected = True
        if self.data.outside_volumes:
            ctl.forget_events(self._written())

    @step("host", event=_EVENT, when="outside_volumes")
    def let_go(self, host: Host) -> None:
        """The guest is off, and its host does not use the volume."""
        with contextlib.suppress(exception.GuestNotFound):
            host.driver.power_off(host.instance, timeout=self._timeout(host))
        host.volumes.disconnect(self._root().connection_info)

    @step(CONDUCTOR, event=_EVENT, undo="reconnect", external=VOLUMES, when="outside_volumes")
    def free(self, ctl: Control) -> None:
        ctl.outside_volumes.disconnect(self.data.host, self._root())

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def write(self, ctl: Control) -> None:
        key, root, image = self._written(), self._root(), ctl.instance.image
        came = ctl.events(key)
        if key not in came and not ctl.waited_out and image is not None:
            ctl.outside_volumes.reimage(root, image)
            raise Wait(key, seconds=ctl.reimage_timeout * (root.size_gb or 1))
        ctl.forget_events(key)
        if came.get(key, FAILED) == FAILED:
            raise exception.InvalidVolume(reason=f"the volume service did not write volume {root.volume_id} "
                                                 f"{'anew' if key in came else 'in time'}")
        self.data.replaced = True

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def connect(self, ctl: Control) -> None:
        ctl.outside_volumes.connect(self.data.host, self._root())

    @step("host", event=_EVENT, task_state=states.REBUILD_BLOCK_DEVICE_MAPPING, results=("replaced",))
    def replace(self, host: Host) -> None:
        host.replace_disks(self.data.token, self.data.keep_ephemerals, self._timeout(host))
        host.result(replaced=True)

    @step("host", event=_EVENT, task_state=states.REBUILD_SPAWNING, results=("replaced",))
    @connects_volumes
    def start(self, host: Host) -> None:
        host.result(replaced=True)
        on_host.connect(host)
        host.spawn()
        if self.data.off:
            host.driver.power_off(host.instance, timeout=0)
        on_host.report_guest(host)

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def complete(self, ctl: Control) -> None:
        ctl.outside_volumes.complete(self._root())

    def _root(self) -> BlockDevice:
        device = root_volume(self.instance.block_devices)
        assert device is not None
        return device

    def _written(self) -> str:
        """The event by which an outside service says that it has written the volume anew."""
        return event_key("volume-reimaged", self._root().volume_id)

    def _timeout(self, host: Host) -> int:
        return 0 if self.data.off else host.shutdown_timeout

    # --- compensations ---------------------------------------------------------------------------------
    def reconnect(self, ctl: Control) -> None:
        """A hard reboot finds the volume, whatever is in it."""
        ctl.outside_volumes.connect(self.data.host, self._root())
        ctl.outside_volumes.complete(self._root())

    def take_back(self, of: Step, ctl: Control) -> None:
        if ctl.instance.deleted:
            ctl.outside_volumes.release(self._root())
        elif of.name != "write":
            self.reconnect(ctl)

    # --- the end ---------------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        self._end_reimage(ctl, done=True)
        ctl.set(vm_state=states.STOPPED if self.data.off else states.ACTIVE, task_state=None, launched_at=ctl.now())

    def failed(self, ctl: Control, failure: Failure) -> None:
        # How far a host came that was lost is not known: the server has what its user wanted.
        if self.data.volume is not None or not (self.data.replaced or failure.kind == exception.HostDown.__name__):
            self._restore(ctl)
        ctl.set(vm_state=states.ERROR, task_state=None)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        if self.data.volume is not None:
            self._restore(ctl)

    def _restore(self, ctl: Control) -> None:
        """The server has the image that it had."""
        self._end_reimage(ctl, done=False)
        had, has = self.data.before.system_metadata, ctl.instance.system_metadata
        ctl.set_items({name: had.get(name) for name in {*had, *has} if _goes_with_the_disks(name)})
        ctl.set(**{name: getattr(self.data.before, name) for name in ImageOfServer.__struct_fields__
                   if name != "system_metadata"})

    def _end_reimage(self, ctl: Control, done: bool) -> None:
        if self.data.volume is not None:
            ctl.volumes.end_reimage(self.data.volume, done)


def _goes_with_the_disks(item: str) -> bool:
    """Whether system_metadata say that of what is on the disks: of their image, or what password the guest posted."""
    return item.startswith(METADATA) or item in PASSWORD_KEYS


def _check_claim(instance: Instance, image: Image) -> None:
    """Whether the server may keep what it has claimed on its host. Raises InvalidInput."""
    flavor, had = instance.flavor, instance.image
    if guest_topology(flavor, image) != guest_topology(flavor, had):
        raise exception.InvalidInput("The image has other NUMA constraints than the one that the server has: it cannot "
                                     "be rebuilt with it where it is.")
    if _amounts(instance, image) != _amounts(instance, had):
        raise exception.InvalidInput("The image asks for other resources than the one that the server has: it cannot "
                                     "be rebuilt with it where it is.")


def _amounts(instance: Instance, image: Image | None) -> dict[str, int]:
    return requested_resources(instance.flavor, image, instance.volume_backed, existing=True).total
