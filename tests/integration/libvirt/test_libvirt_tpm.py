"""Virtual TPMs of real guests: their state survives power cycles and moves, and is removed with the guest."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import xml.etree.ElementTree as ET

import pytest

from nova import exception
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.xml.layout import TPM, secret_of
from tests.integration.libvirt.driver_pair import LabHost, boot, console, hosts_fixture, wait_for_text  # noqa: F401
from tests.integration.libvirt_fixtures import needs_libvirt, server, small_disks

pytestmark = [needs_libvirt, pytest.mark.skipif(
    not shutil.which("swtpm") or not shutil.which("swtpm_setup"), reason="needs swtpm and swtpm-tools")]
Hosts = tuple[LabHost, LabHost]

SECRET = "c0ffee" * 8
# Commands of a TPM 2.0 that define, write and read 8 bytes of its permanent memory (index 0x01500001), with an empty
# password.
_INDEX = r"\x01\x50\x00\x01"
_PASSWORD = r"\x00\x00\x00\x09\x40\x00\x00\x09\x00\x00\x00\x00\x00"
_DEFINE = (rf"\x80\x02\x00\x00\x00\x2d\x00\x00\x01\x2a\x40\x00\x00\x01{_PASSWORD}\x00\x00\x00\x0e{_INDEX}"
           r"\x00\x0b\x02\x04\x00\x04\x00\x00\x00\x08")
_WRITE = rf"\x80\x02\x00\x00\x00\x2b\x00\x00\x01\x37{_INDEX}{_INDEX}{_PASSWORD}\x00\x08precious\x00\x00"
_READ = rf"\x80\x02\x00\x00\x00\x23\x00\x00\x01\x4e{_INDEX}{_INDEX}{_PASSWORD}\x00\x08\x00\x00"
# Writes at the first boot, and reads at every boot.
SCRIPT = rf"""#!/bin/sh
cat > /bin/ask-tpm <<'END'
exec 3<> /dev/tpm0
printf "$1" >&3
dd bs=4096 count=1 <&3 2> /dev/null
END
chmod +x /bin/ask-tpm
sh /bin/ask-tpm '{_DEFINE}' > /dev/null
sh /bin/ask-tpm '{_WRITE}' > /dev/null
echo "echo it read \$(sh /bin/ask-tpm '{_READ}' | strings)" >> /etc/init.d/boot
sync
echo "it wrote $(sh /bin/ask-tpm '{_READ}' | strings)"
"""


@pytest.fixture(name="pair")
def pair_fixture(hosts: Hosts) -> Hosts:
    umask = os.umask(0o077)  # that of a hardened nova-compute
    for host in hosts:
        host.start_driver(swtpm_enabled=True)
    os.umask(umask)
    return hosts


def tpm_server(**fields: object) -> Instance:
    specs = {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb", "hw:tpm_secret_security": "host"}
    return server(specs=specs, tpm_secret=SECRET, **fields)


def small_guest(host: LabHost, image: pathlib.Path) -> BootFiles:
    disks = small_disks(image)
    return dataclasses.replace(disks, root=host.driver.cache_image(disks.root, "i.raw"))


def tpm_files(host: LabHost) -> set[str]:
    """Return the files of TPMs on the host."""
    found = host.run("sh", "-c", "find /var/lib/libvirt/swtpm -name '*permall' 2> /dev/null || true")
    return {pathlib.Path(path).parts[-3] for path in found.split()}


def tpm_secrets(host: LabHost) -> int:
    return host.run("virsh", "-c", host.libvirt.uri, "secret-list").count("vtpm")


def test_state_of_the_tpm_survives_power_cycles_and_moves(pair: Hosts, guest_image: pathlib.Path) -> None:
    one, two = pair
    instance = tpm_server()
    boot(one, instance, guest_image, SCRIPT)
    wait_for_text(one, instance, b"it wrote precious")
    wait_for_text(one, instance, b"user-data ended")
    definition = one.run("virsh", "-c", one.libvirt.uri, "dumpxml", instance.uuid)
    backend = ET.fromstring(definition).find("devices/tpm[@model='tpm-crb']/backend")
    assert backend is not None
    assert (backend.get("version"), backend.find("encryption") is not None) == ("2.0", True)
    assert SECRET not in definition

    target = two.driver.live_target.prepare(instance, one.driver.live_source.check(instance))
    one.driver.live_migrate(instance, target)
    two.driver.live_target.finish(instance)
    one.driver.guests.destroy(instance)
    assert (tpm_files(one), tpm_secrets(one)) == (set(), 0)
    two.driver.power.reboot(instance, hard=True)
    wait_for_text(two, instance, b"it read precious")

    source = two.driver.cold_migration.open_disks(instance, 0)
    assert "tpm2-00.permall" in [file.name for file in source.files]
    assert (tpm_files(two), tpm_secrets(two)) == (set(), 0)
    one.driver.cold_migration.receive_disks(instance, source)
    one.driver.cold_migration.finish(instance)
    one.driver.power.on(instance)
    two.driver.cold_migration.confirm(instance)
    wait_for_text(one, instance, b"it read precious")
    assert (tpm_files(one), tpm_secrets(one)) == ({instance.uuid}, 1)
    one.driver.guests.destroy(instance)
    assert (tpm_files(one), tpm_secrets(one)) == (set(), 0)


def test_reverted_move_restores_the_tpm(pair: Hosts, guest_image: pathlib.Path) -> None:
    one, two = pair
    instance = tpm_server()
    disks = small_guest(one, guest_image)
    one.driver.disks.prepare(instance, disks)
    one.driver.guests.spawn(instance, disks)
    state = state_of(one, instance)
    source = one.driver.cold_migration.open_disks(instance, 0)
    two.driver.cold_migration.receive_disks(instance, source)
    two.driver.cold_migration.finish(instance)
    two.driver.guests.destroy(instance)
    for _ in range(2):
        one.driver.cold_migration.revert(instance)
    assert (tpm_files(one), tpm_files(two), state_of(one, instance)) == ({instance.uuid}, set(), state)
    one.driver.power.on(instance)
    one.driver.power.off(instance)
    one.driver.power.on(instance)
    one.driver.guests.destroy(instance)


def test_move_that_ends_before_libvirt_defines_the_guest_leaves_no_tpm(pair: Hosts, guest_image: pathlib.Path) -> None:
    """No state of a TPM may be outside the guest's directory before its guest is defined: nothing would remove it."""
    one, two = pair
    instance = tpm_server()
    disks = small_guest(one, guest_image)
    one.driver.disks.prepare(instance, disks)
    one.driver.guests.spawn(instance, disks)
    two.driver.cold_migration.receive_disks(instance, one.driver.cold_migration.open_disks(instance, 0))
    libvirt = two.libvirt.uri
    other = "<domain type='qemu'><name>{}</name><memory>1024</memory><os><type>hvm</type></os></domain>"
    path = pathlib.Path(two.place, "other.xml")
    path.write_text(other.format(instance.name_by("instance-%08x")))
    two.run("virsh", "-c", libvirt, "define", str(path))
    with pytest.raises(exception.NovaException):
        two.driver.cold_migration.finish(instance)
    two.driver.guests.destroy(instance)
    assert tpm_files(two) == set()
    two.run("virsh", "-c", libvirt, "undefine", instance.name_by("instance-%08x"))
    one.driver.cold_migration.revert(instance)
    one.driver.guests.destroy(instance)


def state_of(host: LabHost, instance: Instance) -> str:
    return host.run("sha256sum", f"/var/lib/libvirt/swtpm/{instance.uuid}/tpm2/tpm2-00.permall")


def test_guest_without_its_secret_does_not_start(pair: Hosts, guest_image: pathlib.Path) -> None:
    host, instance, disks = pair[0], tpm_server(), small_disks(guest_image)
    instance.tpm_secret = None
    host.driver.disks.prepare(instance, disks)
    with pytest.raises(exception.TpmSecretUnavailable):
        host.driver.guests.spawn(instance, disks)
    assert host.driver.guests.all() == []
    instance.tpm_secret = SECRET
    host.driver.guests.spawn(instance, disks)
    host.driver.power.suspend(instance)
    host.run("virsh", "-c", host.libvirt.uri, "secret-undefine", secret_of(instance.uuid, TPM))
    host.driver.power.resume(instance)
    instance.tpm_secret = "another"  # the state is encrypted
    with pytest.raises(exception.NovaException):
        host.driver.power.reboot(instance, hard=True)
    host.driver.guests.destroy(instance)


def test_host_reports_its_tpms(pair: Hosts) -> None:
    host = pair[0]
    traits = {trait.removeprefix("COMPUTE_SECURITY_TPM_") for trait in host.driver.nodes()[0].provider.traits
              if trait.startswith("COMPUTE_SECURITY_TPM_")}
    assert traits == {"1_2", "2_0", "TIS", "CRB", *(f"SECRET_SECURITY_{name}" for name in (
        "USER", "HOST", "DEPLOYMENT"))}
    host.start_driver()
    assert not any("TPM" in trait for trait in host.driver.nodes()[0].provider.traits)
    with pytest.raises(exception.InvalidInput, match=r"hw_tpm_version=2\.0"):
        host.driver.disks.prepare(tpm_server(), small_disks(pathlib.Path("/")))
