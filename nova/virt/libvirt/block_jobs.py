"""Jobs of disks: QEMU copies them, or puts their files together, while their guest runs."""

from __future__ import annotations

import logging

import libvirt

from nova.virt.libvirt import errors

LOG = logging.getLogger(__name__)


def end(domain: libvirt.virDomain, target: str, flags: int = 0) -> None:
    """End the job of a disk, as ``flags`` of blockJobAbort say; there is none: fine."""
    try:
        domain.blockJobAbort(target, flags)
    except libvirt.libvirtError as error:
        if not errors.says_no_job(error):
            raise
        LOG.debug("[instance: %s] Disk %s: %s", domain.UUIDString(), target, error)
