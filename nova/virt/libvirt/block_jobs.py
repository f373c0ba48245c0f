"""Block jobs of disks: QEMU copies disks or merges their files while the guest runs."""

from __future__ import annotations

import logging

import libvirt

from nova.virt.libvirt import errors

LOG = logging.getLogger(__name__)


def end(domain: libvirt.virDomain, target: str, flags: int = 0) -> None:
    """End the block job of a disk; ``flags``: of blockJobAbort. Succeeds if there is no job."""
    try:
        domain.blockJobAbort(target, flags)
    except libvirt.libvirtError as error:
        if not errors.says_no_job(error):
            raise
        LOG.debug("[instance: %s] Disk %s: %s", domain.UUIDString(), target, error)
