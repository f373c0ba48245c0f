"""Rebuild: give a server new disks, from its image or another one; id, host and addresses do not change.

check (conductor; the scheduler checks if the host supports another image) → replace, start (host). The old disks are
kept until the new disks exist. If the rebuild fails, a hard reboot starts the server from the new disks if they exist,
else from the old disks.

A boot volume is rewritten, too (API 2.93). The embedded volume back end keeps the old content until the rebuild has
succeeded. An external service rewrites the volume while no host uses it: let_go (host) → free, write, connect
(conductor) run before replace, and complete (conductor) at the end."""

import contextlib

import msgspec
from msgspec import UNSET, UnsetType

from nova import exception
from nova.objects.base import Object
from nova.objects.hosts.scheduling import RequestSpec
from nova.objects.images.image import METADATA, Image, check_image_fits, metadata_of
from nova.objects.requirements import disk_buses
from nova.objects.requirements.guest_numa import guest_topology
from nova.objects.requirements.properties import tpm_secret_security
from nova.objects.requirements.requested_resources import requested_resources
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.external_event import FAILED
from nova.objects.servers.guest import PASSWORD_KEYS
from nova.objects.servers.instance import BlockDevice, Instance, Personality, root_volume
from nova.objects.volumes.volume import VolumeContent
from nova.operations.framework import on_host
from nova.operations.framework.base import CONDUCTOR, VOLUMES, Operation, Step, Wait, connects_volumes, event_key, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext, PrecheckContext
from nova.operations.framework.rules import ANY_TPM, Rules

_EVENT = "compute_rebuild_instance"
# Server columns that a request may change in addition to the image.
_COLUMNS = ("display_name", "display_description", "hostname", "access_ip_v4", "access_ip_v6", "disk_config",
            "metadata", "user_data", "trusted_certs")


class RebuildRequest(Object, kw_only=True):
    """``image``, ``kernel_id`` and ``ramdisk_id`` are visible to the caller. UNSET fields do not change."""

    image: Image
    kernel_id: str = ""
    ramdisk_id: str = ""
    admin_pass: str | None = None
    keep_ephemerals: bool = False
    # Rewrite the boot volume. If False, only the current image is accepted.
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
    """The columns of a server that describe the image of its disks."""

    image: Image | None = None
    image_ref: str = ""
    kernel_id: str = ""
    ramdisk_id: str = ""
    system_metadata: dict[str, str] = {}


class RebuildData(Object, kw_only=True):
    """``spec``: scheduler request that checks another image; ``selected``: the check is done or not needed. ``token``
    identifies the new disks; ``replaced``: the server uses them. ``off``: the server is stopped again at the end.
    ``volume``: old content of the boot volume; ``outside_volumes``: an external service rewrites the volume."""

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
                  without_shares=True, without_tpm=ANY_TPM)
    request_type = RebuildRequest
    data_type = RebuildData
    task_state = states.REBUILDING
    kind = "build"
    shuts_down = ends_consoles = True

    def prepare(self, precheck: PrecheckContext, request: RebuildRequest) -> None:
        root = root_volume(self.instance.block_devices)
        if root is not None and request.reimage:
            precheck.check_not_shared(root)

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
                self.data.volume = ctl.volumes.reimage(self._root(), image)
                self.data.outside_volumes = ctl.volumes.are_outside
        self.data.token = ctl.action_uuid
        self.data.off = instance.vm_state == states.STOPPED
        self.data.selected = self.data.spec is None
        self._change(ctl, request)
        ctl.keep_secret(request.admin_pass)

    def _give_image(self, ctl: Acceptance, request: RebuildRequest) -> None:
        instance, image, had = ctl.instance, request.image, ctl.instance.image
        if had is None or had.id != image.id:
            if tpm_secret_security(instance.flavor, image):
                raise exception.ForbiddenWithTpm(method=self.rules.label, instance_uuid=instance.uuid)
            disk_buses.check(instance, instance.flavor, image)
            wanted = requested_resources(instance.flavor, image).required
            current = requested_resources(instance.flavor, had, existing=True).required
            self.data.spec = RequestSpec(
                instance_uuids=[instance.uuid], project_id=instance.project_id, user_id=instance.user_id,
                flavor=instance.flavor, image=image, required_traits=sorted(set(wanted) - set(current)),
                requested_host=instance.host, requested_node=instance.node, alternates=0, in_place=True)
        items = {name: value for name, value in instance.system_metadata.items() if not _describes_disks(name)}
        ctl.set(image=image, image_ref="" if instance.volume_backed else image.id, kernel_id=request.kernel_id,
                ramdisk_id=request.ramdisk_id, system_metadata=items | metadata_of(image))

    def _change(self, ctl: Acceptance, request: RebuildRequest) -> None:
        changes = {name: value for name in _COLUMNS if (value := getattr(request, name)) is not UNSET}
        ctl.check_amounts(changes.get("metadata", {}), request.personality)
        if request.key_name is not UNSET:
            changes["key"] = ctl.key(request.key_name) if request.key_name else None
        mandatory = ctl.instance.image is not None and (
            ctl.instance.image.properties.get("img_config_drive") == "mandatory")
        ctl.set(personality=request.personality, config_drive=ctl.instance.config_drive or mandatory, progress=0,
                **changes)

    @step(CONDUCTOR, calls_scheduler=True, event="rebuild_server")
    def check(self, ctl: Control) -> None:
        """Let the scheduler check that the host supports the new image. The claim of the server does not change."""
        ctl.check_secrets()
        if not self.data.selected:
            ctl.select(self.data.spec)
            self.data.selected = True
        if self.data.outside_volumes:
            ctl.forget_events(self._reimage_event())

    @step("host", event=_EVENT, when="outside_volumes")
    def let_go(self, host: HostContext) -> None:
        """Stop the guest and disconnect the volume from its host."""
        with contextlib.suppress(exception.GuestNotFound):
            host.driver.power.off(host.instance, timeout=self._timeout(host))
        host.volumes.disconnect(self._root().connection_info)

    @step(CONDUCTOR, event=_EVENT, undo="reconnect", external=VOLUMES, when="outside_volumes")
    def free(self, ctl: Control) -> None:
        ctl.outside_volumes.disconnect(self._root())

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def write(self, ctl: Control) -> None:
        key, root, image = self._reimage_event(), self._root(), ctl.instance.image
        came = ctl.events(key)
        if key not in came and not ctl.waited_out and image is not None:
            ctl.outside_volumes.reimage(root, image)
            raise Wait(key, seconds=ctl.reimage_timeout * (root.size_gb or 1))
        ctl.forget_events(key)
        if came.get(key, FAILED) == FAILED:
            raise exception.InvalidVolume(reason=f"the volume service did not reimage volume {root.volume_id} "
                                                 f"{'successfully' if key in came else 'within the time limit'}")
        self.data.replaced = True

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def connect(self, ctl: Control) -> None:
        ctl.outside_volumes.connect(self.data.host, self._root())

    @step("host", event=_EVENT, task_state=states.REBUILD_BLOCK_DEVICE_MAPPING, results=("replaced",))
    def replace(self, host: HostContext) -> None:
        host.replace_disks(self.data.token, self.data.keep_ephemerals, self._timeout(host))
        host.result(replaced=True)

    @step("host", event=_EVENT, task_state=states.REBUILD_SPAWNING, results=("replaced",))
    @connects_volumes
    def start(self, host: HostContext) -> None:
        host.result(replaced=True)
        on_host.connect(host)
        host.spawn()
        if self.data.off:
            host.driver.power.off(host.instance, timeout=0)
        on_host.report_guest(host)

    @step(CONDUCTOR, event=_EVENT, external=VOLUMES, when="outside_volumes")
    def complete(self, ctl: Control) -> None:
        ctl.outside_volumes.complete(self._root())

    def _root(self) -> BlockDevice:
        device = root_volume(self.instance.block_devices)
        assert device is not None
        return device

    def _reimage_event(self) -> str:
        return event_key("volume-reimaged", self._root().volume_id)

    def _timeout(self, host: HostContext) -> int:
        return 0 if self.data.off else host.shutdown_timeout

    def reconnect(self, ctl: Control) -> None:
        """Reconnect the volume, whatever it contains, so that a hard reboot can start the server."""
        ctl.outside_volumes.connect(self.data.host, self._root())
        ctl.outside_volumes.complete(self._root())

    def clean_up(self, of: Step, ctl: Control) -> None:
        if ctl.instance.deleted:
            ctl.outside_volumes.release(self._root())
        elif of.name != "write":
            self.reconnect(ctl)

    def succeeded(self, ctl: Control) -> None:
        self._end_reimage(ctl, done=True)
        ctl.set(vm_state=states.STOPPED if self.data.off else states.ACTIVE, task_state=None, launched_at=ctl.now())

    def failed(self, ctl: Control, failure: Failure) -> None:
        # The progress of a lost host is unknown, so trust the requested state.
        if self.data.volume is not None or not (self.data.replaced or failure.kind == exception.HostDown.__name__):
            self._restore(ctl)
        ctl.set(vm_state=states.ERROR, task_state=None)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        if self.data.volume is not None:
            self._restore(ctl)

    def _restore(self, ctl: Control) -> None:
        self._end_reimage(ctl, done=False)
        had, has = self.data.before.system_metadata, ctl.instance.system_metadata
        ctl.set_items({name: had.get(name) for name in {*had, *has} if _describes_disks(name)})
        ctl.set(**{name: getattr(self.data.before, name) for name in ImageOfServer.__struct_fields__
                   if name != "system_metadata"})

    def _end_reimage(self, ctl: Control, done: bool) -> None:
        if self.data.volume is not None:
            ctl.volumes.end_reimage(self.data.volume, done)


def _describes_disks(item: str) -> bool:
    """Return True if an item of system_metadata describes the disks: image properties, or the guest's password."""
    return item.startswith(METADATA) or item in PASSWORD_KEYS


def _check_claim(instance: Instance, image: Image) -> None:
    """Check that the server may keep its claim on the host with this image. Raises InvalidInput."""
    flavor, had = instance.flavor, instance.image
    if guest_topology(flavor, image) != guest_topology(flavor, had):
        raise exception.InvalidInput("The NUMA constraints of the new image differ from those of the current image: "
                                     "the server cannot be rebuilt on its host.")
    if _amounts(instance, image) != _amounts(instance, had):
        raise exception.InvalidInput("The new image requires other resources than the current image: "
                                     "the server cannot be rebuilt on its host.")


def _amounts(instance: Instance, image: Image | None) -> dict[str, int]:
    return requested_resources(instance.flavor, image, instance.volume_backed, existing=True).total
