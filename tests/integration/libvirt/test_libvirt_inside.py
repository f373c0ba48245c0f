"""Actions inside real guests: quiesce, passwords and crash dumps, with and without the QEMU guest agent."""

from __future__ import annotations

import base64
import pathlib
import threading
from typing import Any

import pytest

from nova import exception
from nova.metadata import config_drive
from nova.metadata.settings import MetadataSettings
from nova.objects.servers import states
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt import snapshots
from tests.integration.libvirt.test_libvirt_volume_files import Share
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

# A minimal QEMU guest agent: answers sync requests and prints commands.
_AGENT = """#!/bin/sh
for port in /sys/class/virtio-ports/*; do
    [ "$(cat $port/name)" = org.qemu.guest_agent.0 ] && device=/dev/${port##*/}
done
(
    exec 3<> $device
    while :; do
        while read -r line <&3; do
            case "$line" in
                *guest-sync*) id=${line#*'"id":'}; echo "{\\"return\\": ${id%%[!0-9]*}}" >&3 ;;
                *guest-fsfreeze-*) echo "agent: says nothing" ;;
                *guest-set-user-password*) echo "agent: $line"; echo '{"return": {}}' >&3 ;;
                *) echo '{"error": {"class": "CommandNotFound", "desc": "unknown"}}' >&3 ;;
            esac
        done
        usleep 100000
    done
) &
"""
# An agent that freezes file systems, and refuses a second freeze.
_RESTS = _AGENT.replace("""*guest-fsfreeze-*) echo "agent: says nothing" ;;""", """\
*guest-fsfreeze-freeze*) if [ -e /tmp/rests ]; then
                    echo '{"error": {"class": "GenericError", "desc": "it is at rest"}}' >&3
                else touch /tmp/rests; echo "agent: rests"; echo '{"return": 1}' >&3; fi ;;
                *guest-fsfreeze-thaw*) if [ -e /tmp/rests ]; then rm /tmp/rests; echo "agent: goes on"; fi
                    echo '{"return": 1}' >&3 ;;""")
_LISTENS = "name='org.qemu.guest_agent.0' state='connected'"


def started(driver: Any, daemon: PrivateLibvirt, image: pathlib.Path, state: pathlib.Path, **fields: Any) -> Any:
    """Start a guest and wait until libvirt reports its agent as connected."""
    instance = server({"hw_qemu_guest_agent": "yes", **fields.pop("properties", {})}, config_drive=True,
                      user_data=base64.b64encode(fields.pop("agent", _AGENT).encode()).decode(), **fields)
    drive = state / f"{instance.uuid}.iso"
    config_drive.build(instance, str(drive), MetadataSettings())
    disks = BootFiles(**{**vars(kernel_disks(image)), "config_drive": str(drive)})
    driver.disks.prepare(instance, disks)
    driver.guests.spawn(instance, disks)
    wait_for(lambda: _LISTENS in daemon.run("virsh", "-c", daemon.uri, "dumpxml", instance.uuid), 120, "an agent")
    return instance


def test_guest_agent_sets_the_administrator_password(
        driver: Any, libvirt_daemon: PrivateLibvirt, guest_image: pathlib.Path, state: pathlib.Path) -> None:
    """The name of the administrator depends on the properties of the image."""
    instance = started(driver, libvirt_daemon, guest_image, state)
    own = instance.image.properties
    users: list[tuple[dict[str, str], str]] = [
        ({}, "root"), ({}, "root"), ({"os_type": "windows"}, "Administrator"), ({"os_admin_user": "mary"}, "mary")]
    for number, (properties, user) in enumerate(users, 1):
        instance.image.properties = {**own, **properties}
        driver.guests.set_password(instance, f"word {number}")
        password = base64.b64encode(f"word {number}".encode())
        log = wait_for_console(driver, instance, password)
        assert f'"{user}"'.encode() in log[log.rindex(b"agent: "):]


def test_silent_guest_agent_does_not_block_snapshots(
        driver: Any, libvirt_daemon: PrivateLibvirt, guest_image: pathlib.Path, state: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is a program of the project: it must not block the snapshot threads of the host."""
    monkeypatch.setattr(snapshots, "AGENT_TIMEOUT", 2)
    instance = started(driver, libvirt_daemon, guest_image, state, properties={"os_require_quiesce": "yes"})
    ended: list[Exception] = []

    def save() -> None:
        try:
            driver.snapshots.take(instance, "11111111-2222-3333-4444-555555555555", threading.Event())
        except exception.InstanceQuiesceFailed as error:
            ended.append(error)

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    wait_for_console(driver, instance, b"says nothing")
    thread.join(120)
    assert len(ended) == 1
    driver.snapshots.discard(instance)
    assert driver.guests.power_state(instance.uuid) == states.RUNNING


def test_guest_stays_quiesced_while_all_its_volumes_are_snapshotted(
        driver: Any, libvirt_daemon: PrivateLibvirt, guest_image: pathlib.Path, state: pathlib.Path) -> None:
    share = Share(state / "share")
    instance = started(driver, libvirt_daemon, guest_image, state, properties={"os_require_quiesce": "yes"},
                       agent=_RESTS, block_devices=[share.device("volume")])
    driver.snapshots.quiesce(instance)
    driver.volume_files.snapshot(instance, share.grow("volume"))
    driver.volume_files.snapshot(instance, share.grow("volume.1", "volume"))
    assert driver.volume_files.names(instance, share.device("volume")) == ["volume.2", "volume.1", "volume"]
    log = wait_for_console(driver, instance, b"agent: rests")
    assert b"agent: goes on" not in log
    driver.snapshots.unquiesce(instance)
    wait_for_console(driver, instance, b"agent: goes on")
    # Without an explicit quiesce, the guest is quiesced for the duration of one snapshot.
    driver.volume_files.snapshot(instance, share.grow("volume.2", "volume.1", "volume"))
    wait_for_console(driver, instance, b"agent: goes on", 2)


def test_set_password_fails_without_a_guest_agent(driver: Any, guest_image: pathlib.Path) -> None:
    for properties in ({}, {"hw_qemu_guest_agent": "yes"}):  # without a channel; with a channel but no agent
        instance = server(properties)
        driver.disks.prepare(instance, small_disks(guest_image))
        driver.guests.spawn(instance, small_disks(guest_image))
        with pytest.raises(exception.InstancePasswordSetFailed) as raised:
            driver.guests.set_password(instance, "a new word")
        assert "agent" in str(raised.value)
        assert "a new word" not in str(raised.value)
        driver.guests.destroy(instance)
    with pytest.raises(exception.GuestNotFound):
        driver.guests.set_password(instance, "a new word")


def test_crash_dump_sends_an_nmi_to_the_guest(driver: Any, guest_image: pathlib.Path) -> None:
    instance = server()
    driver.disks.prepare(instance, kernel_disks(guest_image))
    driver.guests.spawn(instance, kernel_disks(guest_image))
    wait_for_console(driver, instance, b"login:")
    driver.power.trigger_crash_dump(instance)
    wait_for_console(driver, instance, b"NMI received")
    assert driver.guests.power_state(instance.uuid) == states.RUNNING
    driver.power.off(instance)
    with pytest.raises(exception.GuestNotRunning):
        driver.power.trigger_crash_dump(instance)
    driver.guests.destroy(instance)
    with pytest.raises(exception.GuestNotFound):
        driver.power.trigger_crash_dump(instance)
