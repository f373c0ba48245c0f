"""Guests that boot their disk by UEFI, with and without secure boot, to their login prompts.

Run with ``pytest -m slow``; requires ovmf, mtools and the package mirror."""

from __future__ import annotations

import base64
import pathlib
import shutil
import subprocess
from typing import Any

import pytest

from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.operations.framework.guest_driver import BootFiles
from tests.integration.libvirt_fixtures import PrivateLibvirt, needs_libvirt, server, wait_for_console

pytestmark = [needs_libvirt, pytest.mark.slow, pytest.mark.skipif(
    not pathlib.Path("/usr/share/OVMF/OVMF_CODE_4M.ms.fd").exists() or not shutil.which("mcopy"),
    reason="needs ovmf and mtools")]

# Prints that the kernel was started by UEFI, and what it knows about secure boot.
SCRIPT = b"""#!/bin/sh
ls -d /sys/firmware/efi
dmesg | grep -i 'secure boot'
"""


@pytest.fixture(name="uefi_image", scope="module")
def uefi_image_fixture(libvirt_daemon: PrivateLibvirt, guest_image: pathlib.Path) -> pathlib.Path:
    image = pathlib.Path(libvirt_daemon.place, "uefi.qcow2")
    subprocess.run([pathlib.Path(__file__).with_name("uefi_image.sh"), guest_image, image], check=True, timeout=300)
    return image


@pytest.mark.parametrize(("machine", "secure"), [("pc", ""), ("q35", ""), ("q35", "required"), ("", "required")])
def test_guest_boots_by_uefi(driver: Any, uefi_image: pathlib.Path, tmp_path: pathlib.Path, machine: str,
                             secure: str) -> None:
    assert {"COMPUTE_FIRMWARE_UEFI", "COMPUTE_SECURITY_UEFI_SECURE_BOOT"} <= set(driver.nodes()[0].provider.traits)
    properties = {"hw_firmware_type": "uefi", "hw_cdrom_bus": "scsi", "hw_machine_type": machine,
                  "os_secure_boot": secure}
    instance = server({name: value for name, value in properties.items() if value}, flavor={"memory_mb": 256},
                      user_data=base64.b64encode(SCRIPT).decode())
    drive = tmp_path / "drive.iso"
    config_drive.build(instance, str(drive), MetadataSettings())
    files = BootFiles(root=str(uefi_image), root_format="qcow2", config_drive=str(drive))
    driver.disks.prepare(instance, files)
    driver.guests.spawn(instance, files)
    wait_for_console(driver, instance, b"login:", seconds=120)
    log = wait_for_console(driver, instance, b"user-data ended", seconds=30)
    assert b"/sys/firmware/efi\r\n" in log
    assert (b"Secure boot enabled" in log) == bool(secure)
    driver.power.off(instance)
