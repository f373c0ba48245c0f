"""Host directories shared with real guests (virtiofs)."""

from __future__ import annotations

import base64
import pathlib
from typing import Any

from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.objects.base import new_uuid
from nova.objects.volumes.share import INACTIVE, VIRTIO_FS, ShareMapping
from nova.operations.framework.guest_driver import BootFiles
from nova.share.local import LocalShares
from tests.integration.libvirt_fixtures import (
    PrivateLibvirt,
    kernel_disks,
    needs_libvirt,
    server,
    wait_for,
    wait_for_console,
)

pytestmark = needs_libvirt

# Mounts the share at each boot, prints a file and writes another one.
_USES = """#!/bin/sh
mkdir -p /mnt/docs
(
    while ! mount -t virtiofs docs /mnt/docs; do sleep 1; done
    echo "share: $(cat /mnt/docs/word)"
    echo "from the guest" > /mnt/docs/answer
    sync
) &
"""


def test_host_with_virtiofs_reports_the_trait(driver: Any) -> None:
    assert VIRTIO_FS in driver.nodes()[0].provider.traits


def test_guest_reads_and_writes_a_shared_directory(driver: Any, libvirt_daemon: PrivateLibvirt,
                                                   guest_image: pathlib.Path, state: pathlib.Path) -> None:
    mapping = ShareMapping(uuid=new_uuid(), share_id=new_uuid(), tag="docs", status=INACTIVE)
    instance = server({}, config_drive=True, user_data=base64.b64encode(_USES.encode()).decode())
    pool = LocalShares(str(state / "shares"))
    mapping.path = pool.connect(instance.uuid, mapping)
    pathlib.Path(mapping.path, "word").write_text("from the host\n", encoding="ascii")
    drive = state / f"{instance.uuid}.iso"
    config_drive.build(instance, str(drive), MetadataSettings())
    disks = BootFiles(**{**vars(kernel_disks(guest_image)), "config_drive": str(drive)})
    instance.shares = [mapping]
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    wait_for_console(driver, instance, b"share: from the host")
    answer = pathlib.Path(mapping.path, "answer")
    wait_for(lambda: answer.exists() and answer.read_text() == "from the guest\n", 60, "the guest has replied")
    where, = (each for each in driver.guests.device_addresses(instance.uuid) if each.device == "docs")
    assert where.bus == "pci"

    driver.power.off(instance)
    instance.shares = None
    driver.power.on(instance)
    assert "<filesystem" not in libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "dumpxml", instance.uuid)
