"""The VMware driver beyond the contract: sessions, deadlines, datastores, clusters, and machines of others."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pyVmomi import vim

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.vmware.driver import VmwareDriver
from tests.integration.drivers.subject import faster_than, wait_for
from tests.integration.drivers.vmware_subject import VmwareSubject

pytestmark = pytest.mark.skipif(bool(VmwareSubject.missing()), reason=VmwareSubject.missing() or "-")
IMAGE_ID = "5e6c1a0e-0000-4000-8000-000000000003"


@pytest.fixture(name="host", scope="module")
def host_fixture() -> Iterator[VmwareSubject]:
    place = pathlib.Path(tempfile.mkdtemp(prefix="nova-vmware."))
    subject = VmwareSubject(place, "-clusters", "2")
    try:
        yield subject
    finally:
        subject.close()
        shutil.rmtree(place)


@pytest.fixture(name="subject")
def subject_fixture(host: VmwareSubject) -> Iterator[VmwareSubject]:
    yield host
    host.remove_guests()


@contextlib.contextmanager
def options(**values: Any) -> Iterator[None]:
    """Set options of [vmware]."""
    before = {name: CONF.vmware[name] for name in values}
    for name, value in values.items():
        CONF.set_override(name, value, "vmware")
    try:
        yield
    finally:
        for name, value in before.items():
            CONF.set_override(name, value, "vmware")


def machine(subject: VmwareSubject, instance: Instance) -> Any:
    return subject.admin.searchIndex.FindByUuid(None, instance.uuid, True, True)


def disks(subject: VmwareSubject, instance: Instance) -> list[Any]:
    return [device for device in machine(subject, instance).config.hardware.device
            if isinstance(device, vim.vm.device.VirtualDisk)]


def snapshots(subject: VmwareSubject, instance: Instance) -> Any:
    # The simulator cannot return a single property that is not set.
    vcenter = subject.driver.guests.vcenter  # type: ignore[attr-defined]
    return vcenter.get(machine(subject, instance), "snapshot")["snapshot"]


def files(subject: VmwareSubject) -> set[str]:
    """Return the files on the datastore, without those in the cache of images."""
    return {str(path.relative_to(subject.datastore)) for path in subject.datastore.rglob("*")
            if path.is_file() and not path.is_relative_to(subject.datastore / "nova_base")}


# --- session -----------------------------------------------------------------------------------------
def test_expired_session_is_replaced_during_requests_of_several_threads(subject: VmwareSubject) -> None:
    instance = subject.boot()
    manager = subject.admin.sessionManager
    own = manager.currentSession.key
    for session in manager.sessionList:
        if session.key != own:
            manager.TerminateSession([session.key])
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _number: subject.state(instance), range(8))) == {states.RUNNING}
    subject.driver.power.off(instance)
    assert subject.state(instance) == states.SHUTDOWN


def test_wrong_password_and_unknown_cluster_are_refused_at_the_start(subject: VmwareSubject) -> None:
    for name, value, reason in (("host_password", "", "host_password"), ("cluster_name", "nowhere", "cluster_name"),
                                ("datastore_regex", "(", "datastore_regex"), ("ca_file", "/nowhere", "ca_file")):
        with options(**{name: value}), pytest.raises(exception.InvalidInput, match=reason):
            VmwareDriver("other").start(lambda _status: None)


def test_certificate_of_another_authority_is_refused(subject: VmwareSubject) -> None:
    with options(ca_file=None), pytest.raises(exception.HypervisorUnavailable) as refused:
        VmwareDriver("other").start(lambda _status: None)
    assert "certificate" in refused.value.inside
    with options(ca_file=None, insecure=True):
        driver = VmwareDriver("other")
        driver.start(lambda _status: None)
        driver.stop()


def test_frozen_vcenter_is_unavailable_after_the_deadline(subject: VmwareSubject) -> None:
    instance = subject.boot()
    with options(request_timeout=1):
        driver = VmwareDriver("other")
        lost: list[exception.NovaException] = []
        driver.on_unreachable = lost.append
        driver.start(lambda _status: None)
        os.kill(subject.vcsim.process.pid, signal.SIGSTOP)
        try:
            with faster_than(10), pytest.raises(exception.HypervisorUnavailable):
                driver.guests.power_state(instance.uuid)
            wait_for(lambda: lost, 10, "the loss of vCenter is reported")
        finally:
            os.kill(subject.vcsim.process.pid, signal.SIGCONT)
        assert driver.guests.power_state(instance.uuid) == states.RUNNING
        driver.stop()
    assert subject.state(instance) == states.RUNNING


def test_slow_upload_blocks_no_other_request(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    """Conversion and upload of an image take seconds, during which another guest is stopped and started."""
    other = subject.boot()
    image = tmp_path / "slow.raw"
    image.write_bytes(os.urandom(48 << 20))
    instance = subject.server()
    build = threading.Thread(target=subject.driver.disks.prepare, args=(instance, BootFiles(root=str(image))))
    build.start()
    subject.driver.power.off(other)
    subject.driver.power.on(other)
    assert build.is_alive()
    build.join(60)
    assert subject.driver.disks.exist(instance)


# --- nodes ---------------------------------------------------------------------------------------------
def test_node_is_the_cluster_without_hosts_in_maintenance(subject: VmwareSubject) -> None:
    node, = subject.driver.nodes()
    cluster = subject.admin.rootFolder.childEntity[0].hostFolder.childEntity[0]
    assert node.hypervisor_hostname == f"{cluster._moId}.{subject.admin.about.instanceUuid}"
    assert node.hypervisor_version == 6005000
    before = {name: item.total for name, item in node.provider.inventories.items()}
    esx = cluster.host[0]
    assert before["VCPU"] == 3 * esx.summary.hardware.numCpuThreads
    assert node.provider.inventories["VCPU"].max_unit == esx.summary.hardware.numCpuThreads
    esx.EnterMaintenanceMode_Task(0)
    try:
        after = {name: item.total for name, item in subject.driver.nodes()[0].provider.inventories.items()}
        assert after["VCPU"] * 3 == before["VCPU"] * 2
        assert abs(after["MEMORY_MB"] * 3 - before["MEMORY_MB"] * 2) <= 3
        assert after["DISK_GB"] == before["DISK_GB"]
    finally:
        esx.ExitMaintenanceMode_Task(0)
    with options(datastore_regex="other"):
        assert "DISK_GB" not in subject.driver.nodes()[0].provider.inventories
        with pytest.raises(exception.DiskFull):
            subject.driver.disks.prepare(subject.server(), subject.files(subject.server()))


# --- disks -----------------------------------------------------------------------------------------------
def test_image_is_uploaded_once_and_shared_by_linked_clones(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    image = tmp_path / "shared.raw"
    image.write_bytes(b"shared".ljust(1 << 20, b"\0"))
    servers = [subject.server() for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda instance: subject.driver.disks.prepare(instance, BootFiles(root=str(image))), servers))
    cache = subject.datastore / "nova_base/shared"
    assert sorted(os.listdir(cache)) == ["shared.1024-flat.vmdk", "shared.1024.vmdk"]
    parents = {disks(subject, instance)[0].backing.parent.fileName for instance in servers}
    assert parents == {"[LocalDS_0] nova_base/shared/shared.1024.vmdk"}
    flat = tmp_path / "flat.raw"
    subprocess.run(["qemu-img", "convert", "-f", "vmdk", "-O", "raw", cache / "shared.1024-flat.vmdk", flat],
                   check=True, timeout=60)
    assert flat.read_bytes() == image.read_bytes()


def test_full_copy_needs_no_parent(subject: VmwareSubject) -> None:
    with options(use_linked_clone=False):
        instance = subject.boot()
    disk, = disks(subject, instance)
    assert disk.backing.parent is None
    assert disk.backing.fileName == f"[LocalDS_0] {instance.uuid}/root.vmdk"
    assert disk.capacityInKB == 1 << 20


def test_deleted_server_leaves_nothing_and_its_volume(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    drive = tmp_path / "disk.config"
    drive.write_bytes(b"config drive")
    volume = subject.volume(4)
    before = files(subject)
    instance = subject.server(flavor={"ephemeral_gb": 2, "swap": 64})
    boot = BootFiles(root=subject.files(instance).root, root_format="raw", config_drive=str(drive))
    subject.driver.disks.prepare(instance, boot)
    instance.block_devices = [volume]
    subject.driver.guests.spawn(instance, boot)
    sizes = sorted(disk.capacityInKB for disk in disks(subject, instance))
    assert len(sizes) == 4
    assert {64 << 10, 1 << 20, 2 << 20} <= set(sizes)
    drives = [device.backing.fileName for device in machine(subject, instance).config.hardware.device
              if isinstance(device, vim.vm.device.VirtualCdrom) and device.backing.fileName]
    assert drives == [f"[LocalDS_0] {instance.uuid}/config.iso"]
    assert (subject.datastore / instance.uuid / "config.iso").read_bytes() == b"config drive"
    subject.driver.guests.destroy(instance)
    assert files(subject) == before
    assert not (subject.datastore / instance.uuid).exists()
    assert not (subject.vcsim.serial_logs / instance.uuid.replace("-", "")).exists()


def test_failed_creation_leaves_nothing(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    instance, before = subject.server(), files(subject)
    boot = BootFiles(root=subject.files(instance).root, root_format="raw", config_drive=str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        subject.driver.disks.prepare(instance, boot)
    assert machine(subject, instance) is None
    assert files(subject) == before
    subject.driver.disks.prepare(instance, subject.files(instance))
    assert subject.driver.disks.exist(instance)


def test_iso_is_a_cdrom_beside_an_empty_disk(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    image = tmp_path / "setup.raw"
    image.write_bytes(b"\0" * 0x8001 + b"CD001".ljust(2048, b"\0"))
    instance = subject.server()
    assert instance.image is not None
    instance.image.disk_format = "iso"
    subject.driver.disks.prepare(instance, BootFiles(root=str(image), root_format="raw"))
    disk, = disks(subject, instance)
    assert (disk.capacityInKB, disk.backing.parent) == (1 << 20, None)
    drives = [device.backing.fileName for device in machine(subject, instance).config.hardware.device
              if isinstance(device, vim.vm.device.VirtualCdrom)]
    assert "[LocalDS_0] nova_base/setup/setup.iso" in drives
    assert (subject.datastore / "nova_base/setup/setup.iso").read_bytes() == image.read_bytes()


def test_rebuild_keeps_ephemeral_disks_and_volumes(subject: VmwareSubject) -> None:
    instance = subject.boot(flavor={"ephemeral_gb": 1})
    volume = subject.volume(5)
    subject.driver.volumes.attach(instance, volume)
    name = disks(subject, instance)[1].backing.fileName.replace(".vmdk", "-flat.vmdk").removeprefix("[LocalDS_0] ")
    (subject.datastore / name).write_bytes(b"mine")
    before = machine(subject, instance)._moId
    subject.driver.disks.replace(instance, subject.files(instance), "token", keep_ephemerals=True)
    assert machine(subject, instance)._moId != before
    ephemeral = next(disk for disk in disks(subject, instance) if "ephemeral" in disk.backing.fileName)
    path = ephemeral.backing.fileName.removeprefix("[LocalDS_0] ").replace(".vmdk", "-flat.vmdk")
    assert (subject.datastore / path).read_bytes() == b"mine"
    instance.block_devices = [*instance.block_devices, volume]
    subject.driver.guests.spawn(instance, subject.files(instance))
    assert len(disks(subject, instance)) == 3
    assert subject.driver.guests.traces() == {instance.uuid}


def test_root_volume_has_the_first_place(subject: VmwareSubject) -> None:
    instance = subject.server(flavor={"ephemeral_gb": 1})
    root = msgspec.structs.replace(subject.volume(6), boot_index=0)
    instance.block_devices, instance.image_ref = [subject.volume(7), root], ""
    subject.driver.disks.prepare(instance, BootFiles())
    subject.driver.guests.spawn(instance, BootFiles())
    first = next(disk for disk in disks(subject, instance) if disk.unitNumber == 0)
    assert "volume-6" in first.backing.fileName
    assert len(disks(subject, instance)) == 3


def test_volumes_of_other_types_are_refused(subject: VmwareSubject) -> None:
    instance = subject.boot()
    volume = subject.volume(8)
    assert volume.connection is not None
    for changed in ({"protocol": "rbd"}, {"shareable": True}, {"read_only": True}, {"path": "vm-none"}):
        other = msgspec.structs.replace(volume, connection=msgspec.structs.replace(volume.connection, **changed))
        with pytest.raises(exception.VolumeUnusable):
            subject.driver.volumes.attach(instance, other)
    assert len(disks(subject, instance)) == 1


def test_snapshot_has_the_content_of_the_disk(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    instance = subject.boot()
    subject.driver.volumes.attach(instance, subject.volume(5))
    made = subject.driver.snapshots.take(instance, IMAGE_ID, threading.Event())
    flat = tmp_path / "flat.raw"
    subprocess.run(["qemu-img", "convert", "-f", "vmdk", "-O", "raw", made.path, flat], check=True, timeout=60)
    assert flat.read_bytes() == pathlib.Path(subject.files(instance).root or "").read_bytes()
    assert snapshots(subject, instance) is None
    assert len(disks(subject, instance)) == 2
    assert len(subject.driver.guests.all()) == 1
    cancelled = threading.Event()
    cancelled.set()
    subject.driver.snapshots.discard(instance)
    with pytest.raises(exception.SnapshotFailed):
        subject.driver.snapshots.take(instance, IMAGE_ID, cancelled)
    assert snapshots(subject, instance) is None
    assert not (pathlib.Path(CONF.instances_path) / instance.uuid / f"snapshot-{IMAGE_ID}.vmdk.part").exists()


# --- devices, consoles, power ----------------------------------------------------------------------------
def test_interface_of_an_unknown_network_is_refused_before_anything_changes(subject: VmwareSubject) -> None:
    instance = subject.boot()
    vif = msgspec.structs.replace(subject.interface(1), bridge="nowhere")
    with pytest.raises(exception.NetworkSetupError, match="nowhere"):
        subject.driver.interfaces.attach(instance, vif)
    with options(integration_bridge="br-int"):
        subject.driver.interfaces.attach(instance, vif)
        subject.driver.interfaces.attach(instance, msgspec.structs.replace(subject.interface(2), vif_type="ovs"))
    subject.driver.interfaces.attach(instance, msgspec.structs.replace(subject.interface(3), bridge="DC0_DVPG0"))
    cards = [device.backing for device in machine(subject, instance).config.hardware.device
             if isinstance(device, vim.vm.device.VirtualEthernetCard)]
    kinds = vim.vm.device.VirtualEthernetCard
    assert [type(card) for card in cards] == [kinds.OpaqueNetworkBackingInfo] * 2 + [
        kinds.DistributedVirtualPortBackingInfo]
    assert cards[0].opaqueNetworkId == "br-int"


def test_vnc_consoles_have_ports_of_their_own(subject: VmwareSubject) -> None:
    CONF.set_override("enabled", True, "vnc")
    try:
        with options(vnc_port=6100, vnc_port_total=2):
            addresses = [subject.driver.consoles.address(subject.boot().uuid, "vnc") for _ in range(2)]
            with pytest.raises(exception.NovaException, match="vnc_port_total"):
                subject.boot()
    finally:
        CONF.clear_override("enabled", "vnc")
    assert {address.port for address in addresses if address} == {6100, 6101}
    assert all(address and address.host.startswith("DC0_C0_H") for address in addresses)


def test_mks_console_has_a_ticket(subject: VmwareSubject) -> None:
    address = subject.driver.consoles.address(subject.boot().uuid, "mks")
    assert address is not None
    assert (address.host, address.port) == ("esx.example.org", 902)
    ticket = json.loads(address.access_path or "")
    assert ticket["ticket"].startswith("ticket-vm-")
    assert (ticket["thumbprint"], ticket["cfgFile"].endswith(".vmx")) == ("AA:BB", True)


def test_guest_that_starts_paused_waits_for_its_interfaces(subject: VmwareSubject) -> None:
    instance = subject.server()
    subject.driver.disks.prepare(instance, subject.files(instance))
    for _ in range(2):
        subject.driver.guests.spawn(instance, subject.files(instance), paused=True)
        assert subject.state(instance) == states.SHUTDOWN
    for _ in range(2):
        subject.driver.power.unpause(instance)
        assert subject.state(instance) == states.RUNNING


def test_guest_without_tools_is_reset_and_powered_off(subject: VmwareSubject, monkeypatch: Any) -> None:
    instance = subject.boot()
    monkeypatch.setattr(subject.driver.guests, "has_tools", lambda _ref: False)
    with faster_than(20):
        subject.driver.power.reboot(instance, hard=False, timeout=30)
        subject.wait_until_booted(instance, 2)
        subject.driver.power.off(instance, timeout=30)
    assert subject.state(instance) == states.SHUTDOWN
    with pytest.raises(exception.InstanceInvalidState):
        subject.driver.power.suspend(instance)


# --- other machines and clusters ---------------------------------------------------------------------------
def test_machines_of_others_are_never_changed(subject: VmwareSubject) -> None:
    instance = subject.boot()
    machine(subject, instance).ReconfigVM_Task(vim.vm.ConfigSpec(
        managedBy=vim.ext.ManagedByInfo(extensionKey="com.example", type="backup")))
    assert subject.driver.guests.all() == []
    subject.driver.guests.remove_orphan(instance.uuid)
    subject.driver.guests.destroy(instance)
    subject.driver.guests.stop(instance.uuid)
    theirs = machine(subject, instance)
    assert theirs.runtime.powerState == "poweredOn"
    theirs.ReconfigVM_Task(vim.vm.ConfigSpec(managedBy=vim.ext.ManagedByInfo(
        extensionKey="org.openstack.compute", type="instance")))
    assert subject.driver.guests.traces() == {instance.uuid}


def test_server_moves_to_another_cluster_and_back(subject: VmwareSubject, tmp_path: pathlib.Path) -> None:
    with options(cluster_name="DC0_C1"):
        other = VmwareDriver("second")
        other.start(lambda _status: None)
    drive = tmp_path / "disk.config"
    drive.write_bytes(b"config drive")
    instance = subject.server()
    boot = BootFiles(root=subject.files(instance).root, root_format="raw", config_drive=str(drive))
    subject.driver.disks.prepare(instance, boot)
    subject.driver.guests.spawn(instance, boot)
    source = subject.driver.cold_migration.open_disks(instance)
    with pytest.raises(exception.MigrationError, match="vCenter"):
        other.cold_migration.receive_disks(instance, msgspec.structs.replace(source, token="another"))
    other.cold_migration.receive_disks(instance, source)
    other.cold_migration.finish(instance)
    other.power.on(instance)
    assert [guest.uuid for guest in other.guests.all()] == [instance.uuid]
    assert subject.driver.guests.all() == []
    subject.driver.guests.destroy(instance)  # A late cleanup on the source must not reach the guest.
    assert other.guests.power_state(instance.uuid) == states.RUNNING
    subject.driver.cold_migration.revert(instance)  # Refused while the guest exists.
    assert subject.driver.guests.traces() == {instance.uuid}
    subject.driver.cold_migration.confirm(instance)
    assert subject.driver.guests.traces() == set()
    drives = [device.backing.fileName for device in machine(subject, instance).config.hardware.device
              if isinstance(device, vim.vm.device.VirtualCdrom) and device.backing.fileName]
    place = subject.datastore / drives[0].removeprefix("[LocalDS_0] ")
    assert place.read_bytes() == b"config drive"
    other.guests.destroy(instance)
    assert other.guests.traces() == set()
    other.stop()


def test_image_in_the_making_of_a_crashed_compute_is_completed(subject: VmwareSubject) -> None:
    """A machine that was being created when nova-compute ended is created again."""
    instance = subject.boot()
    machine(subject, instance).PowerOffVM_Task()
    machine(subject, instance).ReconfigVM_Task(vim.vm.ConfigSpec(managedBy=vim.ext.ManagedByInfo(
        extensionKey="org.openstack.compute", type="incomplete")))
    before = machine(subject, instance)._moId
    assert not subject.driver.disks.exist(instance)
    subject.driver.disks.prepare(instance, subject.files(instance))
    assert machine(subject, instance)._moId != before
    subject.driver.guests.spawn(instance, subject.files(instance))
    assert subject.state(instance) == states.RUNNING


def test_disk_of_a_resized_server_has_the_new_size(subject: VmwareSubject) -> None:
    instance = subject.boot()
    larger = msgspec.structs.replace(instance, flavor=msgspec.structs.replace(
        instance.flavor, root_gb=2, ephemeral_gb=1, vcpus=2, memory_mb=256))
    source = subject.driver.cold_migration.open_disks(instance)
    subject.driver.cold_migration.receive_disks(larger, source)
    subject.driver.cold_migration.finish(larger)
    subject.driver.cold_migration.confirm(instance)
    config = machine(subject, instance).config
    assert sorted(disk.capacityInKB for disk in disks(subject, instance)) == [1 << 20, 2 << 20]
    assert (config.hardware.numCPU, config.hardware.memoryMB) == (2, 256)
