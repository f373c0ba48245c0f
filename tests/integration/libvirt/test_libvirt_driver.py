"""The life cycle of real guests (QEMU, emulated CPU) with the libvirt driver."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

import pytest

from nova import exception
from nova.conf import CONF
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.console import SPICE, VNC
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import BlockDevice
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.images.imagecache import ImageCache
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.libvirt_fixtures import (
    PrivateLibvirt,
    kernel_disks,
    needs_libvirt,
    server,
    small_disks,
    wait_for,
    wait_for_console,
)

pytestmark = needs_libvirt
LOGIN = b"login:"


def boot(driver: Any, instance: Any, disks: BootFiles) -> None:
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)


def reported(events: list[GuestStatus], uuid: str, power_state: int) -> bool:
    return GuestStatus(uuid=uuid, power_state=power_state) in events


def files(instance: Any) -> set[str]:
    return set(os.listdir(os.path.join(CONF.instances_path, instance.uuid)))


def test_paused_guest_does_not_run_before_unpause(driver: Any, guest_image: pathlib.Path) -> None:
    instance, disks = server(), small_disks(guest_image)
    driver.disks.prepare(instance, disks)
    for _ in range(2):
        driver.guests.spawn(instance, disks, paused=True)
        assert driver.guests.power_state(instance.uuid) == states.POWER_PAUSED
    assert driver.consoles.output(instance) == b""
    driver.power.unpause(instance)
    wait_for_console(driver, instance, LOGIN)
    # A running guest is not paused by another spawn.
    driver.guests.spawn(instance, disks, paused=True)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    driver.power.off(instance)
    driver.power.on(instance, paused=True)
    assert driver.guests.power_state(instance.uuid) == states.POWER_PAUSED
    driver.guests.destroy(instance)


def test_guest_life_cycle(driver: Any, guest_image: pathlib.Path, events: list[GuestStatus],
                          libvirt_daemon: PrivateLibvirt) -> None:
    instance = server()
    boot(driver, instance, kernel_disks(guest_image))
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    log = wait_for_console(driver, instance, LOGIN)
    assert b"nova guest ready" in log
    assert driver.consoles.output(instance, 3).count(b"\n") in (2, 3)
    wait_for(lambda: reported(events, instance.uuid, states.RUNNING), 10, "the start is reported")

    # A repeated spawn does not restart the guest.
    number = libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "domid", instance.uuid)
    boot(driver, instance, kernel_disks(guest_image))
    assert libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "domid", instance.uuid) == number

    for _ in range(2):
        driver.power.pause(instance)
        assert driver.guests.power_state(instance.uuid) == states.POWER_PAUSED
    for _ in range(2):
        driver.power.unpause(instance)
        assert driver.guests.power_state(instance.uuid) == states.RUNNING
    for _ in range(2):
        driver.power.suspend(instance)
        assert driver.guests.power_state(instance.uuid) == states.POWER_SUSPENDED
    for _ in range(2):
        driver.power.resume(instance)
        assert driver.guests.power_state(instance.uuid) == states.RUNNING
    assert driver.consoles.output(instance).count(LOGIN) == 1, "the guest booted instead of resuming"

    started = time.monotonic()
    driver.power.reboot(instance, hard=False, timeout=60)
    assert time.monotonic() - started < 60, "the guest did not shut down by itself"
    log = wait_for_console(driver, instance, LOGIN, 2)
    assert b"reboot: Power down" in log

    # A soft reboot without a timeout is a hard one, which requests no shutdown, and keeps the log.
    driver.power.reboot(instance, hard=False, timeout=0)
    driver.power.reboot(instance, hard=True)
    log = wait_for_console(driver, instance, LOGIN, 3)
    assert log.count(b"reboot: Power down") == 1

    driver.power.off(instance, timeout=60)
    assert driver.guests.power_state(instance.uuid) == states.SHUTDOWN
    assert driver.consoles.output(instance).count(b"reboot: Power down") == 2
    driver.power.off(instance, timeout=60)
    wait_for(lambda: reported(events, instance.uuid, states.SHUTDOWN), 10, "the stop is reported")
    assert [guest.uuid for guest in driver.guests.all()] == [instance.uuid]

    for _ in range(2):
        driver.power.on(instance)
        assert driver.guests.power_state(instance.uuid) == states.RUNNING
    wait_for_console(driver, instance, LOGIN, 4)

    for _ in range(2):
        driver.guests.destroy(instance)
    assert driver.guests.all() == []
    assert os.listdir(CONF.instances_path) == []
    with pytest.raises(exception.GuestNotFound):
        driver.guests.power_state(instance.uuid)
    with pytest.raises(exception.ConsoleLogUnavailable):
        driver.consoles.output(instance)


def test_bootable_disk_is_resized_to_the_flavor(driver: Any, guest_image: pathlib.Path, state: pathlib.Path,
                                                libvirt_daemon: PrivateLibvirt) -> None:
    instance = server({"hw_machine_type": "q35", "hw_qemu_guest_agent": "true"}, flavor={"root_gb": 2})
    base = ImageCache().fetch(
        "image", lambda path, admit: shutil.copyfile(guest_image / "nova-guest.qcow2", path) and None, "qcow2", 2 << 30)
    boot(driver, instance, BootFiles(root=base))
    wait_for_console(driver, instance, LOGIN)
    assert os.stat(base).st_uid == 0, "a guest that breaks out could change the cached image of other guests"
    size = libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "domblkinfo", instance.uuid, "vda")
    assert f"{2 << 30}" in size.split("\n")[0]
    assert driver.disks.used_images() == [base]
    found = driver.guests.diagnostics(instance)
    assert (found.values["state"], found.values["num_cpus"], found.values["num_disks"]) == ("running", 1, 1)
    assert found.values["disk_details"][0]["read_bytes"] > 0
    assert found.flat["vda_read"] > 0
    assert found.flat["cpu0_time"] > 0
    driver.power.suspend(instance)
    off = driver.guests.diagnostics(instance)
    assert (off.values["state"], off.values["cpu_details"], off.values["uptime"]) == ("suspended", [], None)
    assert {name for name in off.flat if not name.startswith("memory")} == set()
    driver.guests.destroy(instance)
    assert libvirt_daemon.run("find", "/var/lib/libvirt/qemu/save", "-type", "f") == ""


def test_guest_sees_all_its_disks(driver: Any, guest_image: pathlib.Path, state: pathlib.Path) -> None:
    drive = state / "drive.iso"
    (state / "content").mkdir()
    (state / "content" / "hello").write_text("hello")
    subprocess.run(["genisoimage", "-quiet", "-V", "config-2", "-o", str(drive), str(state / "content")], check=True,
                   timeout=60)
    instance = server(flavor={"ephemeral_gb": 2, "swap": 64}, block_devices=[
        BlockDevice(source="image", boot_index=0),
        BlockDevice(source="blank", size_gb=1), BlockDevice(source="blank", size_gb=1, guest_format="ext3"),
        BlockDevice(source="blank", guest_format="swap")])
    disks = kernel_disks(guest_image)
    boot(driver, instance, BootFiles(**{**vars(disks), "config_drive": str(drive)}))
    assert files(instance) >= {"disk", "disk.eph0", "disk.eph1", "disk.swap", "disk.config", "kernel", "ramdisk"}
    log = wait_for_console(driver, instance, LOGIN)
    for line in (b"vda", b"vdb", b"vdc", b"vdd", b"sr0"):
        assert line in log, f"the guest's kernel does not log {line!r}"


@pytest.mark.parametrize("properties", [
    {"hw_disk_bus": "scsi", "hw_scsi_model": "virtio-scsi", "hw_cdrom_bus": "scsi"},
    {"hw_disk_bus": "sata", "hw_machine_type": "q35", "hw_video_model": "vga"},
    {"hw_disk_bus": "ide", "hw_vif_model": "e1000", "hw_watchdog_action": "reset", "hw_sound_model": "ich6"},
    {"hw_disk_bus": "usb", "hw_usb_model": "qemu-xhci", "hw_boot_menu": "true"},
    {"hw_cpu_cores": "2", "hw_serial_port_count": "2", "hw_time_hpet": "true", "os_type": "windows"},
], ids=["scsi", "sata", "ide", "usb", "cpu"])
def test_guests_with_hardware_variants_start(driver: Any, guest_image: pathlib.Path,
                                             properties: dict[str, str]) -> None:
    instance = server(properties, flavor={"vcpus": 2})
    boot(driver, instance, BootFiles(root=str(guest_image / "nova-guest.qcow2"), root_format="qcow2"))
    assert driver.guests.power_state(instance.uuid) == states.RUNNING


@pytest.mark.parametrize("secure", ["disabled", "required"])
def test_uefi_variables_survive_a_reboot_and_are_deleted_with_the_server(
        driver: Any, guest_image: pathlib.Path, secure: str, libvirt_daemon: PrivateLibvirt) -> None:
    if "COMPUTE_FIRMWARE_UEFI" not in driver.nodes()[0].provider.traits:
        pytest.skip("no UEFI firmware is installed")

    def variables() -> str:
        return libvirt_daemon.run("find", CONF.instances_path, "-name", "nvram", "-printf", "%i")

    instance = server({"hw_firmware_type": "uefi", "hw_machine_type": "q35"}, {"os:secure_boot": secure})
    boot(driver, instance, small_disks(guest_image))
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    first = variables()
    assert first
    assert not os.stat(os.path.join(CONF.instances_path, instance.uuid, "disk")).st_mode & 0o077, "not private"
    driver.power.reboot(instance, hard=True)
    assert variables() == first
    driver.guests.destroy(instance)
    assert variables() == ""


def test_interface_is_attached_to_its_bridge(driver: Any, guest_image: pathlib.Path,
                                             libvirt_daemon: PrivateLibvirt) -> None:
    libvirt_daemon.run("ip", "link", "add", "br-life", "type", "bridge")
    vif = VIF(id="v", network_id="n", label="l", mac="fa:16:3e:11:22:33", bridge="br-life",
              devname="tap0123456789", mtu=1400)
    instance = server(network_info=[vif])
    boot(driver, instance, small_disks(guest_image))
    shown = libvirt_daemon.run("ip", "link", "show", "tap0123456789")
    assert "master br-life" in shown
    assert "mtu 1400" in shown
    driver.power.reboot(instance, hard=True)
    assert "master br-life" in libvirt_daemon.run("ip", "link", "show", "tap0123456789")
    driver.guests.destroy(instance)
    assert "tap0123456789" not in libvirt_daemon.run("ip", "link")


def test_guest_that_ignores_acpi_is_stopped_and_rebooted_after_the_timeout(driver: Any,
                                                                           guest_image: pathlib.Path) -> None:
    instance = server({"os_command_line": "acpi=off panic=0"})
    boot(driver, instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    started = time.monotonic()
    driver.power.reboot(instance, hard=False, timeout=3)
    assert 3 <= time.monotonic() - started < 20
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    started = time.monotonic()
    driver.power.off(instance, timeout=2)
    assert 2 <= time.monotonic() - started < 20
    assert driver.guests.power_state(instance.uuid) == states.SHUTDOWN


def test_delete_and_hard_reboot_do_not_wait_for_a_soft_reboot(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server({"os_command_line": "acpi=off"})
    boot(driver, instance, small_disks(guest_image))
    for verb in (lambda: driver.power.reboot(instance, hard=True), lambda: driver.guests.destroy(instance)):
        outcome: list[object] = []

        def stop(outcome: list[object] = outcome) -> None:
            try:
                outcome.append(driver.power.reboot(instance, hard=False, timeout=60))
            except exception.GuestNotFound as gone:
                outcome.append(gone)

        slow = threading.Thread(target=stop)
        slow.start()
        time.sleep(1.5)
        started = time.monotonic()
        verb()
        assert time.monotonic() - started < 10
        slow.join(timeout=10)
        assert not slow.is_alive()
        assert len(outcome) == 1
    assert driver.guests.all() == []


def test_hard_reboot_works_from_any_state(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    for bring in (driver.power.pause, driver.power.suspend, driver.power.off):
        bring(instance)
        driver.power.reboot(instance, hard=True)
        assert driver.guests.power_state(instance.uuid) == states.RUNNING


def test_operations_on_a_missing_guest_raise_guest_not_found(driver: Any) -> None:
    instance = server()
    for verb in (driver.power.pause, driver.power.unpause, driver.power.suspend, driver.power.resume, driver.power.off,
                 lambda one: driver.power.reboot(one, hard=False), lambda one: driver.guests.power_state(one.uuid)):
        with pytest.raises(exception.GuestNotFound):
            verb(instance)
    with pytest.raises(exception.InvalidDiskInfo):
        driver.power.on(instance)
    driver.guests.destroy(instance)
    driver.guests.remove_orphan(instance.uuid)
    with pytest.raises(exception.InvalidInput):
        driver.guests.remove_orphan("../../etc")


def test_pause_of_a_stopped_guest_raises_invalid_state(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    driver.power.off(instance)
    for verb in (driver.power.pause, driver.power.suspend):
        with pytest.raises(exception.InstanceInvalidState):
            verb(instance)


def test_foreign_guests_are_ignored(driver: Any, guest_image: pathlib.Path, state: pathlib.Path,
                                    events: list[GuestStatus], libvirt_daemon: PrivateLibvirt) -> None:
    definition = state / "foreign.xml"
    definition.write_text("<domain type='qemu'><name>foreign</name><memory unit='MiB'>32</memory>"
                          "<os><type arch='x86_64'>hvm</type></os></domain>")
    libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "create", str(definition))
    other = LibvirtDriver("another-compute")
    other.start(lambda status: None)
    theirs, ours = server(), server()
    try:
        boot(other, theirs, small_disks(guest_image))
        boot(driver, ours, small_disks(guest_image))
        wait_for(lambda: reported(events, ours.uuid, states.RUNNING), 10, "our start is reported")
        assert [guest.uuid for guest in driver.guests.all()] == [ours.uuid]
        assert [guest.uuid for guest in other.guests.all()] == [theirs.uuid]
        assert {event.uuid for event in events} == {ours.uuid}
    finally:
        other.guests.destroy(theirs)
        other.stop()
        libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "destroy", "foreign")


def test_shutdown_inside_the_guest_is_reported(driver: Any, guest_image: pathlib.Path, events: list[GuestStatus],
                                               libvirt_daemon: PrivateLibvirt) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    wait_for_console(driver, instance, LOGIN)
    libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "shutdown", instance.uuid)
    wait_for(lambda: reported(events, instance.uuid, states.SHUTDOWN), 60, "the shutdown is reported")


def test_operations_resume_after_a_libvirtd_restart(driver: Any, guest_image: pathlib.Path, events: list[GuestStatus],
                                                    libvirt_daemon: PrivateLibvirt) -> None:
    CONF.set_override("reconnect_timeout", 2, "libvirt")
    try:
        instance, second = server(), server()
        boot(driver, instance, small_disks(guest_image))
        driver.disks.prepare(second, small_disks(guest_image))
        lost: list[Exception] = []
        driver.on_unreachable = lost.append
        libvirt_daemon.kill_daemon()
        started = time.monotonic()
        with pytest.raises(exception.HypervisorUnavailable):
            driver.guests.power_state(instance.uuid)
        with pytest.raises(exception.HypervisorUnavailable):
            driver.guests.spawn(second, BootFiles())
        with pytest.raises(exception.HypervisorUnavailable):
            driver.nodes()
        assert time.monotonic() - started < 15
        assert [type(error) for error in lost] == [exception.HypervisorUnavailable], "not reported exactly once"

        CONF.set_override("reconnect_timeout", 30, "libvirt")
        outcome: list[object] = []
        waiting = threading.Thread(target=lambda: outcome.append(driver.guests.spawn(second, BootFiles())))
        waiting.start()
        time.sleep(1)
        libvirt_daemon.start_daemon()
        waiting.join(timeout=40)
        assert outcome == [None], "an action interrupted by a restart of libvirtd did not continue"
        assert driver.guests.power_state(instance.uuid) == states.RUNNING, "the guest died with libvirtd"
        assert driver.guests.power_state(second.uuid) == states.RUNNING

        # Events are received again although no call was made in between.
        libvirt_daemon.kill_daemon()
        libvirt_daemon.start_daemon()
        time.sleep(3)
        libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "destroy", second.uuid)
        wait_for(lambda: reported(events, second.uuid, states.SHUTDOWN), 20, "the stop is reported")
    finally:
        CONF.clear_override("reconnect_timeout", "libvirt")


def test_guest_crash_without_libvirtd_is_reported_after_its_restart(
        driver: Any, guest_image: pathlib.Path, events: list[GuestStatus], libvirt_daemon: PrivateLibvirt) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    wait_for(lambda: reported(events, instance.uuid, states.RUNNING), 10, "the start is reported")
    name = instance.name_by(CONF.instance_name_template)
    pid = int(libvirt_daemon.run("sh", "-c", f"cat /run/libvirt/qemu/{name}.pid"))
    libvirt_daemon.kill_daemon()
    os.kill(pid, 9)
    libvirt_daemon.start_daemon()
    wait_for(lambda: any(event.uuid == instance.uuid and event.power_state in (states.SHUTDOWN, states.CRASHED)
                         for event in events), 30, "the crash is reported")


def test_driver_reports_the_compute_node(driver: Any) -> None:
    node, = driver.nodes()
    assert node.hypervisor_hostname == driver.host == node.host
    assert (node.hypervisor_type, node.hypervisor_version // 1000000) == ("QEMU", node.hypervisor_version // 1000000)
    assert node.hypervisor_version > 2000000
    assert node.uuid == node.provider.uuid == driver.nodes()[0].uuid
    inventories = node.provider.inventories
    assert inventories["VCPU"].total == os.cpu_count()
    assert (inventories["VCPU"].ratio, inventories["MEMORY_MB"].reserved) == (4.0, 512)
    assert inventories["DISK_GB"].total >= 1
    assert {"COMPUTE_NODE", "OWNER_NOVA", "COMPUTE_STORAGE_BUS_VIRTIO"} <= set(node.provider.traits)
    assert any(name.startswith("HW_CPU_X86_") for name in node.provider.traits)
    assert ("x86_64", "qemu", "hvm") in node.supported_instances
    assert set(node.cpu_info) == {"arch", "model", "vendor", "features", "topology"}
    assert "load average" in node.uptime


def test_inventory_uses_configured_ratios_and_reservations(driver: Any) -> None:
    CONF.set_override("cpu_allocation_ratio", 2.5)
    CONF.set_override("reserved_host_disk_mb", 1500)
    CONF.set_override("size_limit_mb", 3072, "image_cache")
    try:
        inventories = driver.nodes()[0].provider.inventories
        assert inventories["VCPU"].ratio == 2.5
        assert inventories["DISK_GB"].reserved == 2 + 3, "the image cache limit is not reserved"
        CONF.set_override("size_limit_mb", 0, "image_cache")
        assert driver.nodes()[0].provider.inventories["DISK_GB"].reserved == 2
        CONF.set_override("size_limit_mb", 1 << 40, "image_cache")
        assert driver.nodes()[0].provider.inventories["DISK_GB"].reserved == inventories["DISK_GB"].total
    finally:
        CONF.clear_override("cpu_allocation_ratio")
        CONF.clear_override("size_limit_mb", "image_cache")
        CONF.clear_override("reserved_host_disk_mb")


def test_guest_uses_the_configured_cpu_disk_and_display_options(state: pathlib.Path, guest_image: pathlib.Path,
                                                                libvirt_daemon: PrivateLibvirt) -> None:
    values = {"cpu_mode": "custom", "cpu_models": ["NoSuchCPU", "Nehalem"], "cpu_model_extra_flags": ["-sse4.2"],
              "hw_machine_type": ["x86_64=q35"], "disk_cachemodes": ["file=unsafe"], "hw_disk_discard": "unmap",
              "sysinfo_serial": "none", "mem_stats_period_seconds": 0}
    for name, value in values.items():
        CONF.set_override(name, value, "libvirt")
    screens = {"enabled": True, "image_compression": "quic", "playback_compression": False,
               "server_proxyclient_address": "10.0.0.7"}
    for name, value in screens.items():
        CONF.set_override(name, value, "spice")
    CONF.set_override("enabled", True, "vnc")
    one = LibvirtDriver("otherwise")
    one.start(lambda status: None)
    instance = server()
    try:
        boot(one, instance, small_disks(guest_image))
        assert one.guests.power_state(instance.uuid) == states.RUNNING
        text = libvirt_daemon.run("virsh", "-c", libvirt_daemon.uri, "dumpxml", instance.uuid)
        for part in ("Nehalem", "pc-q35", "cache='unsafe'", "discard='unmap'", "type='vnc'", "listen='127.0.0.1'",
                     "<image compression='quic'/>", "<playback compression='off'/>", "com.redhat.spice.0"):
            assert part in text, part
        assert text.count("<video>") == 1
        found = one.consoles.address(instance.uuid, SPICE)
        assert (found.host, found.tls_port) == ("10.0.0.7", None)
        assert f"<graphics type='spice' port='{found.port}' autoport='yes'" in text
        assert found.port != one.consoles.address(instance.uuid, VNC).port
        traits = one.nodes()[0].provider.traits
        assert "HW_CPU_X86_SSE41" in traits
        assert not {"HW_CPU_X86_SSE42", "HW_CPU_X86_AVX2"} & set(traits)
    finally:
        one.guests.destroy(instance)
        one.stop()
        for name in values:
            CONF.clear_override(name, "libvirt")
        for name in screens:
            CONF.clear_override(name, "spice")
        CONF.clear_override("enabled", "vnc")


def test_unsupported_cpu_mode_is_refused_at_start(state: pathlib.Path) -> None:
    CONF.set_override("cpu_mode", "host-passthrough", "libvirt")
    try:
        one = LibvirtDriver("h")
        with pytest.raises(exception.InvalidInput, match="cpu_mode"):
            one.start(lambda status: None)
        one.stop()
    finally:
        CONF.clear_override("cpu_mode", "libvirt")


def test_driver_start_fails_without_libvirtd(state: pathlib.Path) -> None:
    CONF.set_override("connection_uri", f"qemu+unix:///system?socket={state}/nothing", "libvirt")
    CONF.set_override("reconnect_timeout", 2, "libvirt")
    one = LibvirtDriver("h")
    started = time.monotonic()
    try:
        with pytest.raises(exception.HypervisorUnavailable):
            one.start(lambda status: None)
    finally:
        CONF.clear_override("reconnect_timeout", "libvirt")
    assert 2 <= time.monotonic() - started < 10
    one.stop()


def test_guest_with_retained_disks_starts_again(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    driver.guests.destroy(instance, keep_disks=True)
    assert driver.guests.all() == []
    assert {"disk", "kernel", "ramdisk", "console.log"} <= files(instance)
    driver.power.on(instance)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING


def test_restarted_driver_lists_existing_guests_without_events(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server()
    boot(driver, instance, small_disks(guest_image))
    driver.power.pause(instance)
    driver.power.suspend(instance)
    next_one = LibvirtDriver(driver.host)
    events: list[GuestStatus] = []
    next_one.start(events.append)
    try:
        assert next_one.guests.all() == [GuestStatus(uuid=instance.uuid, power_state=states.POWER_SUSPENDED)]
        assert events == [], "the initial state was reported as an event"
        next_one.power.resume(instance)
        assert next_one.guests.power_state(instance.uuid) == states.RUNNING, "the guest was paused before its suspend"
        next_one.guests.destroy(instance)
        assert next_one.guests.all() == []
    finally:
        next_one.stop()


def test_concurrent_and_repeated_spawns_succeed(driver: Any, guest_image: pathlib.Path) -> None:
    instances = [server(flavor={"memory_mb": 64}) for _ in range(3)]
    failures: list[BaseException] = []

    def build(instance: Any) -> None:
        try:
            boot(driver, instance, small_disks(guest_image))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=build, args=(instance,)) for instance in instances * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert sorted(guest.uuid for guest in driver.guests.all()) == sorted(instance.uuid for instance in instances)


def test_guest_with_a_duplicate_domain_name_is_refused(driver: Any, guest_image: pathlib.Path) -> None:
    first = server()
    boot(driver, first, small_disks(guest_image))
    second = server(id=first.id)
    driver.disks.prepare(second, small_disks(guest_image))
    with pytest.raises(exception.Conflict, match=first.name_by(CONF.instance_name_template)):
        driver.guests.spawn(second, BootFiles())
    driver.guests.destroy(second)
    assert [guest.uuid for guest in driver.guests.all()] == [first.uuid]


def test_hanging_libvirtd_raises_hypervisor_unavailable(
        driver: Any, guest_image: pathlib.Path, libvirt_daemon: PrivateLibvirt,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nova.virt.libvirt.host.KEEPALIVE_INTERVAL", 1)
    monkeypatch.setattr("nova.virt.libvirt.host.KEEPALIVE_COUNT", 2)
    CONF.set_override("reconnect_timeout", 0, "libvirt")
    one = LibvirtDriver("impatient")
    one.start(lambda status: None)
    try:
        libvirt_daemon.signal_daemon(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(exception.HypervisorUnavailable):
            one.guests.all()
        assert time.monotonic() - started < 20
    finally:
        libvirt_daemon.signal_daemon(signal.SIGCONT)
        CONF.clear_override("reconnect_timeout", "libvirt")
    assert wait_for(lambda: one.nodes(), 20, "libvirtd responds again") != []
    one.stop()


def test_unknown_machine_type_is_refused_before_disks_are_created(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server({"hw_machine_type": "pdp11"})
    with pytest.raises(exception.InvalidInput, match="pdp11"):
        driver.disks.prepare(instance, small_disks(guest_image))
    assert not os.path.exists(os.path.join(CONF.instances_path, instance.uuid))
