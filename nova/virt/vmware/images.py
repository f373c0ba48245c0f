"""The images on datastores: each image is converted and uploaded once, and shared by all guests of a datastore.

A linked clone cannot be larger than its parent, so there is one disk per image and size of root disks. A disk gets its
final name when it is complete, so that several nova-compute may share the directory."""

import contextlib
import glob
import logging
import os
import shutil
import tempfile
import urllib.parse
import uuid
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.conf import CONF
from nova.objects.accounts.flavor import disk_too_small
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_locks import GuestLocks
from nova.virt.images import qemuimg
from nova.virt.vmware.cluster import Cluster, Datastore
from nova.virt.vmware.errors import VCenterFault

LOG = logging.getLogger(__name__)

_GIB, _MIB, _KIB = 1 << 30, 1 << 20, 1 << 10
# Adapter types in the descriptor of a disk. All other types use lsilogic, which their SCSI controllers accept.
_QEMU_ADAPTERS = {"ide": "ide", "busLogic": "buslogic"}


def virtual_size(files: BootFiles) -> int:
    """Return the size in bytes of the disk of the image. Raises InvalidDiskInfo if the image is not in the cache."""
    try:
        assert files.root is not None
        if files.root_format == "raw" or files.root.endswith(".raw"):
            return os.stat(files.root).st_size
        return int(qemuimg.Qcow2Header(files.root).virtual_size)
    except FileNotFoundError as error:
        raise exception.InvalidDiskInfo(reason="the server's image is not in the image cache of the host") from error


def root_size(files: BootFiles, root_gb: int) -> int:
    """Return the size in bytes of a root disk of the image. ``root_gb``: size in the flavor (0: the size of the image).
    Raises FlavorDiskTooSmall."""
    have = virtual_size(files)
    if root_gb and have > root_gb * _GIB:
        raise disk_too_small(root_gb * _GIB, have)
    return root_gb * _GIB or -(-have // _MIB) * _MIB


class ImageStore:
    """The images of a compute service. ``host``: name of the service."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self._cluster, self._host = cluster, host
        self._locks = GuestLocks()

    def remove_conversions(self) -> None:
        """Remove converted images that an earlier process of this service left on this machine."""
        for path in glob.glob(os.path.join(glob.escape(CONF.instances_path), f"{glob.escape(self._prefix)}*")):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def _prefix(self) -> str:
        """Return the prefix of this service's temporary directories; other services may share instances_path."""
        return f"upload-{urllib.parse.quote(self._host, safe='')}-"

    def disk(self, datastore: Datastore, files: BootFiles, adapter: str, size: int) -> str:
        """Return the path of a disk of ``size`` bytes with the content of the image, uploaded if missing. Raises
        DiskFull, InvalidDiskInfo."""
        kind = _QEMU_ADAPTERS.get(adapter, "lsilogic")
        stem = self._stem(files)
        name = f"{stem}.{size // _MIB}" + ("" if kind == "lsilogic" else f".{kind}") + ".vmdk"
        with self._locks.hold(f"{datastore.name}/{stem}"):
            if not self._exists(datastore, stem, name):
                self._make_disk(datastore, files, kind, size, name)
        return datastore.path(f"{self._folder(stem)}/{name}")

    def iso(self, datastore: Datastore, files: BootFiles) -> str:
        """Return the path of the CD image, uploaded if missing."""
        stem = self._stem(files)
        name = f"{stem}.iso"
        with self._locks.hold(f"{datastore.name}/{stem}"):
            if not self._exists(datastore, stem, name):
                part = f"{self._folder(stem)}/{name}.{uuid.uuid4().hex}.part"
                self._make_folder(datastore, stem)
                with self._removed_on_error(datastore, part):
                    self._upload(datastore, files.root or "", part)
                    manager = self._cluster.vcenter.content.fileManager
                    self._publish(manager.MoveDatastoreFile_Task, datastore, part, f"{self._folder(stem)}/{name}")
        return datastore.path(f"{self._folder(stem)}/{name}")

    @staticmethod
    def _stem(files: BootFiles) -> str:
        name = os.path.basename(files.root or "")
        return name.rpartition(".")[0] or name

    def _folder(self, stem: str) -> str:
        return f"{CONF.vmware.cache_prefix or self._host}_base/{stem}"

    def _exists(self, datastore: Datastore, stem: str, name: str) -> bool:
        vcenter = self._cluster.vcenter
        browser = vcenter.get(datastore.ref, "browser")["browser"]
        try:
            result = vcenter.wait(browser.SearchDatastore_Task(
                datastore.path(self._folder(stem)), vim.host.DatastoreBrowser.SearchSpec(matchPattern=[name])))
        except VCenterFault as error:
            if error.is_a(vim.fault.FileNotFound):
                return False
            raise
        return any(file.path == name for file in result.file or ())

    def _make_folder(self, datastore: Datastore, stem: str) -> None:
        try:
            self._cluster.vcenter.content.fileManager.MakeDirectory(
                datastore.path(self._folder(stem)), self._cluster.datacenter, True)
        except VCenterFault as error:
            if not error.is_a(vim.fault.FileAlreadyExists):
                raise

    def _make_disk(self, datastore: Datastore, files: BootFiles, kind: str, size: int, name: str) -> None:
        folder, unique = self._folder(self._stem(files)), uuid.uuid4().hex
        sparse, part = f"{folder}/{unique}-sparse.vmdk", f"{folder}/{unique}.vmdk"
        vcenter, have = self._cluster.vcenter, virtual_size(files)
        disks, datacenter = vcenter.content.virtualDiskManager, self._cluster.datacenter
        self._make_folder(datastore, self._stem(files))
        LOG.info("Uploading image %s to datastore %s", self._stem(files), datastore.name)
        with self._removed_on_error(datastore, sparse, always=True), self._removed_on_error(datastore, part):
            with tempfile.TemporaryDirectory(dir=CONF.instances_path, prefix=self._prefix) as place:
                converted = os.path.join(place, "disk.vmdk")
                assert files.root is not None
                source_format = "raw" if files.root.endswith(".raw") else files.root_format
                qemuimg.convert(files.root, source_format, converted, "vmdk", have,
                                f"adapter_type={kind},subformat=monolithicSparse")
                self._upload(datastore, converted, sparse)
            vcenter.wait(disks.CopyVirtualDisk_Task(datastore.path(sparse), datacenter, datastore.path(part),
                                                    datacenter, None, False))
            if size > have:
                vcenter.wait(disks.ExtendVirtualDisk_Task(datastore.path(part), datacenter, size // _KIB, False))
            self._publish(disks.MoveVirtualDisk_Task, datastore, part, f"{folder}/{name}")

    def _upload(self, datastore: Datastore, path: str, name: str) -> None:
        self._cluster.vcenter.upload(path, self._cluster.datacenter_path, datastore.name, name)

    def _publish(self, move: Any, datastore: Datastore, part: str, name: str) -> None:
        """Rename a complete file. If another nova-compute was faster, remove the file and use the other one."""
        datacenter = self._cluster.datacenter
        try:
            self._cluster.vcenter.wait(move(datastore.path(part), datacenter, datastore.path(name), datacenter, False))
        except VCenterFault as error:
            if not error.is_a(vim.fault.FileAlreadyExists):
                raise
            self._remove(datastore, part)

    @contextlib.contextmanager
    def _removed_on_error(self, datastore: Datastore, name: str, always: bool = False) -> Any:
        """Remove a file if the block fails, or (``always``) in any case."""
        try:
            yield
        except BaseException:
            self._remove(datastore, name)
            raise
        if always:
            self._remove(datastore, name)

    def _remove(self, datastore: Datastore, name: str) -> None:
        content = self._cluster.vcenter.content
        for remove in (content.virtualDiskManager.DeleteVirtualDisk_Task, content.fileManager.DeleteDatastoreFile_Task):
            with contextlib.suppress(exception.NovaException):
                self._cluster.vcenter.wait(remove(datastore.path(name), self._cluster.datacenter))
