"""Context of a step on a compute host: driver, network, volumes, images, and the reported results."""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nova import exception
from nova.common import files
from nova.compute.job import Fenced, Job, fenced_roles
from nova.conf import CONF
from nova.context import RequestContext
from nova.image.base import CheckSize, ImageStore
from nova.metadata import config_drive, settings
from nova.network.base import HostNetwork
from nova.objects.accounts.flavor import disk_too_small
from nova.objects.images.image import Image, shutdown_timeout_of
from nova.objects.networks.network import RuleSet
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.share import ShareMapping
from nova.objects.volumes.volume import VolumeKey
from nova.operations.framework.guest_driver import BootFiles, GuestDriver, InProgress, step_notes
from nova.share.base import HostShares, NoShares
from nova.virt.driver import Driver, rescue_disk_gb
from nova.virt.images.imagecache import ImageCache, ImageTooLarge, format_of
from nova.volume.base import HostVolumes, NoVolumes

# Suffix of the file of a new config drive, until it replaces the current config drive.
_NEW = ".new"
# Seconds between two reports of the progress of a step.
PROGRESS_INTERVAL = 0.5
Send = Callable[[dict[str, Any], dict[str, Any]], None]


@dataclasses.dataclass
class Machine:
    """The back ends of a compute host, shared by all its operations."""

    name: str
    driver: Driver
    network: HostNetwork
    images: Callable[[], ImageStore]
    cache: ImageCache
    volumes: HostVolumes = dataclasses.field(default_factory=NoVolumes)
    shares: HostShares = dataclasses.field(default_factory=NoShares)


def image_shutdown_timeout(instance: Instance) -> int | None:
    """Return the seconds that the image gives the guest to shut down, or None if it sets no valid value. Servers that
    an older release created may have an invalid value, because that release did not check it."""
    try:
        return shutdown_timeout_of(instance.image)
    except exception.InvalidInput:
        return None


def shutdown_timeout(instance: Instance) -> int:
    """Return the seconds that the guest gets to shut down: the image's value, else [DEFAULT]shutdown_timeout."""
    wanted = image_shutdown_timeout(instance)
    return int(CONF.shutdown_timeout) if wanted is None else wanted


class Progress:
    """Sends at most two progress reports per second, each with all values. The end of the step sends the final one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._pending: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._sent_at = float("-inf")

    def note(self, changes: dict[str, Any], values: dict[str, Any]) -> None:
        """Send the values now if the interval has passed; otherwise with newer values or at the end of the step."""
        with self._lock:
            self._pending = changes, values
        if time.monotonic() - self._sent_at >= PROGRESS_INTERVAL:
            self.end()

    def end(self) -> None:
        """Send the pending values."""
        with self._lock:
            pending, self._pending = self._pending, None
            self._sent_at = time.monotonic() if pending else self._sent_at
        if pending:
            self._send(*pending)


class StepHost:
    """A :class:`nova.operations.framework.contexts.HostContext` on this machine. ``send``: sends progress reports."""

    def __init__(self, machine: Machine, job: Job, send: Send) -> None:
        self.machine = machine
        self.ctx = job.ctx
        self.instance = job.order.instance
        self.rules: RuleSet = job.order.rules
        self.cancelled = job.cancelled
        # Steps of a superseded operation must not call a back end any more.
        self.driver: GuestDriver = fenced_roles(machine.driver, job)
        self.network: Any = Fenced(machine.network, job)
        self.volumes: Any = Fenced(machine.volumes, job)
        self.shares: Any = Fenced(machine.shares, job)
        self.shutdown_timeout = shutdown_timeout(self.instance)
        self.image_shutdown_timeout = image_shutdown_timeout(self.instance)
        self.changes: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._job = job
        self._progress = Progress(send)
        self.end_step = self._progress.end

    def set(self, **changes: Any) -> None:
        self.changes.update(msgspec.to_builtins(changes))

    def result(self, **values: Any) -> None:
        self.results.update(msgspec.to_builtins(values))

    def progress(self, percent: int, **values: Any) -> None:
        self._job.fence()
        self._progress.note({"progress": max(0, min(100, percent))}, msgspec.to_builtins(values))

    def connected(self, device: BlockDevice) -> BlockDevice:
        fetch = self._image_file if self.machine.driver.needs_images else None
        connection = self.volumes.connect(device.connection_info, fetch, self._key(device))
        return msgspec.structs.replace(device, connection=connection)

    def _key(self, device: BlockDevice) -> VolumeKey | None:
        """Return the key of an encrypted volume. Raises VolumeUnusable if the conductor did not send it."""
        wanted = device.encryption
        if wanted is None:
            return None
        key = next((key for key in self._job.order.volume_keys if key.key_id == wanted.key_id), None)
        if key is None:
            raise exception.VolumeUnusable(volume_id=device.volume_id, reason=(
                "the stored key of the encrypted volume cannot be decrypted; detach and attach the volume again"))
        return key

    def connect_volumes(self, instance: Instance | None = None) -> None:
        instance = instance or self.instance
        volumes = {id(device) for device in instance.volumes}
        instance.block_devices = [self.connected(device) if id(device) in volumes else device
                                  for device in instance.block_devices]

    def disconnect_volumes(self) -> None:
        for device in self.instance.volumes:
            self.volumes.disconnect(device.connection_info)

    def connect_shares(self, instance: Instance | None = None) -> None:
        instance = instance or self.instance
        usable = {mapping.uuid for mapping in instance.usable_shares}
        if usable:
            instance.shares = [msgspec.structs.replace(mapping, path=self.shares.connect(instance.uuid, mapping))
                               if mapping.uuid in usable else mapping for mapping in instance.shares or ()]

    def disconnect_shares(self, *mappings: ShareMapping) -> None:
        for mapping in mappings or self.instance.shares or ():
            self.shares.disconnect(self.instance.uuid, mapping)
        if not mappings:  # disconnect also shares that were detached while this host was down
            self.shares.disconnect_guest(self.instance.uuid)

    def _image_file(self, image: Image, most: int) -> tuple[str, str]:
        path = cached_image(self.machine, self.ctx, image, most)
        return path, format_of(path) or "raw"

    def prepare_disks(self, root: Image | None = None) -> None:
        self.driver.disks.prepare(self.instance, self.boot_files(root=root))

    def replace_disks(self, token: str, keep_ephemerals: bool, timeout: int) -> None:
        with self._new_drive():
            self.driver.disks.replace(self.instance, self.boot_files(_NEW), token, keep_ephemerals, timeout)

    def rescue(self, image: Image | None, kernel_id: str, ramdisk_id: str, timeout: int) -> None:
        own = self.instance
        options = CONF.libvirt
        if image is None and options.rescue_image_id:
            image = self.machine.images().show(self.ctx, options.rescue_image_id)
            kernel_id, ramdisk_id = options.rescue_kernel_id or "", options.rescue_ramdisk_id or ""
        if image is None:
            image, kernel_id, ramdisk_id = own.image, own.kernel_id, own.ramdisk_id
        if image is None:
            raise exception.InstanceNotRescuable(instance_id=own.uuid, reason="it has no image, and its host has "
                                                                             "no rescue image configured")
        flavor = msgspec.structs.replace(own.flavor, root_gb=rescue_disk_gb(own))
        rescued = msgspec.structs.replace(own, image=image, image_ref=image.id, kernel_id=kernel_id,
                                          ramdisk_id=ramdisk_id, flavor=flavor)
        with self._new_drive():
            self.driver.rescue.begin(own, image, self.boot_files(_NEW, rescued), timeout)

    @contextlib.contextmanager
    def _new_drive(self) -> Iterator[None]:
        """Remove the file of the new config drive at the end of the block, unless it replaced the current one."""
        try:
            yield
        except InProgress:
            raise  # keep the file: the runner calls the step again later
        except BaseException:
            files.remove(self._drive_path(_NEW))
            raise
        files.remove(self._drive_path(_NEW))

    def upload(self, image_id: str, made: DiskImage) -> None:
        self._job.fence()
        self.machine.images().upload(self.ctx, image_id, made.path, made.format)

    def spawn(self, paused: bool = False, root: Image | None = None) -> None:
        boot = self.boot_files(root=root)
        # The config drive contains device addresses, which are known only after the guest is defined.
        if boot.config_drive and (addresses := self.driver.guests.define(self.instance)) is not None:
            self._build_drive(boot.config_drive, msgspec.structs.replace(self.instance, device_addresses=addresses))
        self.driver.guests.spawn(self.instance, boot, paused=paused)

    def boot_files(self, drive: str = "", instance: Instance | None = None, root: Image | None = None) -> BootFiles:
        """Return the guest's images, fetched into the cache if missing, and its config drive. ``drive``: suffix of a
        new config drive beside the current one. ``instance``: use its images instead of those of
        the step's instance. ``root``: use this image for the root disk only."""
        instance = instance or self.instance
        if not self.machine.driver.needs_images:
            drives = instance.config_drive and not self.machine.driver.virtual
            return BootFiles(config_drive=self._config_drive(drive) if drives else None)
        most = CONF.compute.kernel_size_limit_mb << 20
        return BootFiles(root=self._root(instance, root) if instance.image_ref else None, alone=root is not None,
                         kernel=self._boot_file(instance.kernel_id, "aki", most),
                         ramdisk=self._boot_file(instance.ramdisk_id, "ari", most),
                         config_drive=self._config_drive(drive) if instance.config_drive else None)

    def _boot_file(self, image_id: str, disk_format: str, most: int | None) -> str | None:
        """Return the path of a kernel or ramdisk in the cache, or None without an id."""
        image = Image(id=image_id, disk_format=disk_format)
        return cached_image(self.machine, self.ctx, image, most) if image_id else None

    def _root(self, instance: Instance, other: Image | None) -> str:
        # A flavor without a root disk size uses the size of the image.
        most = instance.flavor.root_gb << 30 or None
        try:
            return cached_image(self.machine, self.ctx, other or instance.image or Image(id=instance.image_ref), most)
        except ImageTooLarge as error:
            raise disk_too_small(error.kwargs["most"], error.kwargs["size"]) from error

    def _config_drive(self, ending: str) -> str:
        """Return the path of the config drive. The current drive never changes and is built once. A new drive (with an
        ``ending``) is built once per step and replaces the file that a killed process may have left."""
        path, notes = self._drive_path(ending), step_notes()
        if not os.path.exists(path) or (ending and path not in notes):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._build_drive(path, self.instance)
            notes[path] = 1
        return path

    @staticmethod
    def _build_drive(path: str, instance: Instance) -> None:
        config_drive.build(instance, path, settings.from_conf(CONF), instance.admin_pass, mkisofs=CONF.mkisofs_cmd)

    def _drive_path(self, ending: str) -> str:
        return os.path.join(CONF.instances_path, self.instance.uuid, f"disk.config{ending}")


def cached_image(machine: Machine, ctx: RequestContext, image: Image, most: int | None) -> str:
    """Return the path of an image in the cache, fetched if missing. ``most``: maximum size of its disk in bytes. An
    image that needs a valid signature is cached separately from unverified downloads. Raises the errors of the cache
    and of the image service."""
    def download(path: str, check_size: CheckSize) -> None:
        machine.images().download(ctx, image.id, path, check_size)

    disk_format = image.disk_format
    if disk_format == "vmdk" and image.properties.get("vmware_disktype") == "preallocated":
        disk_format = "raw"  # the image has only the data of the disk; the VMDK descriptor is another file
    if not image.certificate:
        return machine.cache.fetch(image.id, download, disk_format, most)
    from nova.image import signatures

    def verified(path: str, check_size: CheckSize) -> None:
        download(path, check_size)
        signatures.verify(image, path)

    return machine.cache.fetch(image.id, verified, disk_format, most, signatures.fingerprint(image))
