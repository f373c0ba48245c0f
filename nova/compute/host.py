"""A host's side of a step: the driver, the network, the images and what the step reports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nova import context
from nova.conf import CONF
from nova.image.base import ImageStore
from nova.metadata import config_drive, settings
from nova.network.base import HostNetwork
from nova.objects.instance import Instance
from nova.objects.network import FilterRule
from nova.virt.driver import Disks, Driver
from nova.virt.imagecache import ImageCache


@dataclasses.dataclass
class Machine:
    """What all operations on this host share."""

    name: str
    driver: Driver
    network: HostNetwork
    images: Callable[[], ImageStore]
    cache: ImageCache


class StepHost:
    """A :class:`nova.operations.contexts.Host` on this machine."""

    def __init__(self, machine: Machine, ctx: context.RequestContext, instance: Instance,
                 rules: Sequence[FilterRule]) -> None:
        self.machine = machine
        self.ctx = ctx
        self.instance = instance
        self.rules = rules
        self.driver = machine.driver
        self.network = machine.network
        self.shutdown_timeout: int = CONF.shutdown_timeout
        self.changes: dict[str, Any] = {}

    def set(self, **changes: Any) -> None:
        self.changes.update(msgspec.to_builtins(changes))

    def prepare_disks(self) -> None:
        self.machine.driver.prepare(self.instance, self._disks())

    def spawn(self) -> None:
        self.machine.driver.spawn(self.instance, self._disks())

    def _disks(self) -> Disks:
        """The guest's images, fetched if they are not there yet, and its config drive."""
        instance = self.instance
        if not self.machine.driver.needs_images:
            return Disks()
        root = self._cached(instance.image_ref, self._format()) if instance.image_ref else None
        return Disks(
            root=root,
            kernel=self._cached(instance.kernel_id, "aki") if instance.kernel_id else None,
            ramdisk=self._cached(instance.ramdisk_id, "ari") if instance.ramdisk_id else None,
            config_drive=self._config_drive() if instance.config_drive else None)

    def _format(self) -> str | None:
        return self.instance.image.disk_format if self.instance.image else None

    def _cached(self, image_id: str, disk_format: str | None) -> str:
        def download(path: str) -> None:
            self.machine.images().download(self.ctx, image_id, path)

        return self.machine.cache.fetch(image_id, download, disk_format)

    def _config_drive(self) -> str:
        """Built once: its content is fixed when the server is made."""
        directory = os.path.join(CONF.instances_path, self.instance.uuid)
        path = os.path.join(directory, "disk.config")
        if not os.path.exists(path):
            os.makedirs(directory, exist_ok=True)
            config_drive.build(self.instance, path, settings.from_conf(CONF), self.instance.admin_pass,
                               mkisofs=CONF.mkisofs_cmd)
        return path
