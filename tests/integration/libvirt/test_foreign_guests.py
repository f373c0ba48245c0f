"""Guests of other architectures, emulated on this host, and guests that boot by UEFI, to their login prompts.

Run with ``pytest -m slow``; requires qemu-system-arm with qemu-efi-aarch64, qemu-system-ppc, qemu-system-misc, ovmf."""

from __future__ import annotations

import base64
import pathlib
import shutil
import subprocess
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.objects.requirements.hardware_values import architecture_trait
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.xml.guest_platforms import platform_of
from tests.integration.libvirt_fixtures import PrivateLibvirt, needs_libvirt, server, wait_for_console

pytestmark = [needs_libvirt, pytest.mark.slow]


def _needs_qemu(name: str) -> Any:
    return pytest.mark.skipif(not shutil.which(f"qemu-system-{name}"), reason=f"needs QEMU for {name}")


@pytest.mark.parametrize("architecture", [
    pytest.param(name, marks=_needs_qemu(name)) for name in ("aarch64", "ppc64le", "s390x")])
def test_guest_of_another_architecture_boots(driver: Any, libvirt_daemon: PrivateLibvirt, tmp_path: pathlib.Path,
                                             architecture: str) -> None:
    node, = driver.nodes()
    assert (architecture, "qemu", "hvm") in node.supported_instances
    assert architecture_trait(architecture) in node.provider.traits
    place = pathlib.Path(libvirt_daemon.place, architecture)
    script, console = pathlib.Path(__file__).with_name("foreign_image.sh"), platform_of(architecture).console
    subprocess.run([script, architecture, console, place], check=True, timeout=400)
    (place / "root.raw").write_bytes(bytes(1 << 20))
    instance = server({"hw_architecture": architecture, "os_command_line": "nova.root=none"}, flavor={"memory_mb": 512},
                      kernel_id="k")
    files = BootFiles(root=str(place / "root.raw"), root_format="raw", kernel=str(place / "vmlinuz"),
                      ramdisk=str(place / "initrd.gz"))
    driver.disks.prepare(instance, files)
    driver.guests.spawn(instance, files)
    wait_for_console(driver, instance, b"login:", seconds=400)
    root = ET.fromstring(libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "dumpxml", instance.uuid))
    assert root.find("os/type").get("arch") == architecture
    driver.power.off(instance)
    shutil.rmtree(place)


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


@pytest.mark.skipif(not pathlib.Path("/usr/share/OVMF/OVMF_CODE_4M.ms.fd").exists() or not shutil.which("mcopy"),
                    reason="needs ovmf and mtools")
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
