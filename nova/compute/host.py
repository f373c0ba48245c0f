"""A host's side of a step: the driver, the network, the images and what the step reports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import msgspec

from nova.compute.job import Fenced, Job
from nova.compute.progress import Progress
from nova.conf import CONF
from nova.image.base import Admit, ImageStore
from nova.metadata import config_drive, settings
from nova.network.base import HostNetwork
from nova.objects.flavor import disk_too_small
from nova.objects.image import Image
from nova.objects.instance import BlockDevice, Instance
from nova.objects.network import RuleSet
from nova.virt.driver import Disks, Driver
from nova.virt.imagecache import ImageCache, ImageTooLarge, format_of
from nova.volume.base import HostVolumes, NoVolumes


@dataclasses.dataclass
class Machine:
    """What all operations on this host share."""

    name: str
    driver: Driver
    network: HostNetwork
    images: Callable[[], ImageStore]
    cache: ImageCache
    volumes: HostVolumes = dataclasses.field(default_factory=NoVolumes)


class StepHost:
    """A :class:`nova.operations.contexts.Host` on this machine. ``tell``: sends changes and values at once."""

    def __init__(self, machine: Machine, job: Job, tell: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
        self.machine = machine
        self.ctx = job.ctx
        self.instance = job.order.instance
        self.rules: RuleSet = job.order.rules
        self.cancelled = job.cancelled
        # A superseded order cannot call another verb.
        self.driver: Any = Fenced(machine.driver, job)
        self.network: Any = Fenced(machine.network, job)
        self.volumes: Any = Fenced(machine.volumes, job)
        self.shutdown_timeout: int = CONF.shutdown_timeout
        self.changes: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._job = job
        self._progress = Progress(tell)

    def set(self, **changes: Any) -> None:
        self.changes.update(msgspec.to_builtins(changes))

    def result(self, **values: Any) -> None:
        self.results.update(msgspec.to_builtins(values))

    def progress(self, percent: int, **values: Any) -> None:
        self._job.fence()
        self._progress.note({"progress": max(0, min(100, percent))}, msgspec.to_builtins(values))

    def end_step(self) -> None:
        """Tell of its progress what was not told yet."""
        self._progress.end()

    def connected(self, device: BlockDevice) -> BlockDevice:
        fetch = self._image_file if self.machine.driver.needs_images else None
        return msgspec.structs.replace(device, connection=self.volumes.connect(device.connection_info, fetch))

    def connect_volumes(self, instance: Instance | None = None) -> None:
        instance = instance or self.instance
        volumes = {id(device) for device in instance.volumes}
        instance.block_devices = [self.connected(device) if id(device) in volumes else device
                                  for device in instance.block_devices]

    def disconnect_volumes(self) -> None:
        for device in self.instance.volumes:
            self.volumes.disconnect(device.connection_info)

    def _image_file(self, image: Image, most: int) -> tuple[str, str]:
        path = self._cached(image, most)
        return path, format_of(path) or "raw"

    def prepare_disks(self) -> None:
        self.driver.prepare(self.instance, self.disks())

    def spawn(self, paused: bool = False) -> None:
        self.driver.spawn(self.instance, self.disks(), paused=paused)

    def disks(self) -> Disks:
        """The guest's images, fetched if they are not there yet, and its config drive."""
        instance = self.instance
        if not self.machine.driver.needs_images:
            return Disks()
        most = CONF.compute.kernel_size_limit_mb << 20
        return Disks(
            root=self._root(instance) if instance.image_ref else None,
            kernel=self._cached(Image(id=instance.kernel_id, disk_format="aki"), most) if instance.kernel_id else None,
            ramdisk=self._cached(Image(id=instance.ramdisk_id, disk_format="ari"), most)
            if instance.ramdisk_id else None,
            config_drive=self._config_drive() if instance.config_drive else None)

    def _root(self, instance: Instance) -> str:
        # a flavor without a root disk takes the image as large as it is
        most = instance.flavor.root_gb << 30 or None
        try:
            return self._cached(instance.image or Image(id=instance.image_ref), most)
        except ImageTooLarge as error:
            raise disk_too_small(error.kwargs["most"], error.kwargs["size"]) from error

    def _cached(self, image: Image, most: int | None) -> str:
        """``most``: the bytes of the disk that it may be. What has to be verified is never what somebody else fetched
        without."""
        def download(path: str, admit: Admit) -> None:
            self.machine.images().download(self.ctx, image.id, path, admit)

        if not image.certificate:
            return self.machine.cache.fetch(image.id, download, image.disk_format, most)
        from nova.image import signatures

        def verified(path: str, admit: Admit) -> None:
            download(path, admit)
            signatures.verify(image, path)

        return self.machine.cache.fetch(image.id, verified, image.disk_format, most, signatures.fingerprint(image))

    def _config_drive(self) -> str:
        """Built once: its content is fixed when the server is made."""
        directory = os.path.join(CONF.instances_path, self.instance.uuid)
        path = os.path.join(directory, "disk.config")
        if not os.path.exists(path):
            os.makedirs(directory, exist_ok=True)
            config_drive.build(self.instance, path, settings.from_conf(CONF), self.instance.admin_pass,
                               mkisofs=CONF.mkisofs_cmd)
        return path
