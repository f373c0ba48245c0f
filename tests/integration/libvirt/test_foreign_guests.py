"""Guests of other architectures, emulated on this host, to their login prompts.

Run with ``pytest -m slow``; requires qemu-system-arm with qemu-efi-aarch64, qemu-system-ppc or qemu-system-misc."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import xml.etree.ElementTree as ET
from typing import Any

import pytest

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
