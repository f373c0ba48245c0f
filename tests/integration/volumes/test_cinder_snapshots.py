"""Snapshots of attached volumes by a real Cinder while a real guest writes; no data are lost."""

from __future__ import annotations

import base64

import pytest

from tests.integration.guest_shell import GuestShell
from tests.integration.hosts.two_hosts import needs_hosts
from tests.integration.processes import eventually
from tests.integration.real_cloud import BOOT, RealCloud
from tests.integration.volumes.cinder_cloud import cloud_fixture, hosts_fixture  # noqa: F401 (fixtures)
from tests.integration.volumes.real_cinder import RealCinder, cinder_fixture, needs_cinder  # noqa: F401 (fixture)
from tests.integration.volumes.test_volumes_guests import OPEN

pytestmark = [needs_hosts, needs_cinder, pytest.mark.root,
              pytest.mark.parametrize("cinder", ["raw", "qcow2"], indirect=True, scope="module")]

_MIB = 4
# The block in which the guest counts.
_COUNT = 100 << 11
# The device is also opened after a reboot.
ALWAYS_OPEN = base64.b64encode(base64.b64decode(OPEN) + b"""
echo '::respawn:/bin/sh -c "chmod 666 /dev/vd[b-z]; sleep 1"' >> /etc/inittab
sync
""").decode()


def booted(cloud: RealCloud, volume: str, user_data: str) -> str:
    """Boot a server with the volume, because the kernel logs a later attachment to the console during the login."""
    server = cloud.boot("guest", cloud.trio, user_data=user_data, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": volume, "destination_type": "volume"}])
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, "guest")
    return server


def write(shell: GuestShell, place: int) -> None:
    shell.run(f"dd if=/dev/urandom of=/tmp/part{place} bs=1M count={_MIB} 2> /dev/null; "
              f"dd if=/tmp/part{place} of=/dev/vdb bs=1M seek={place * _MIB} 2> /dev/null; sync", 120)


def digest(shell: GuestShell, places: int) -> str:
    """Return the digest of the volume's content."""
    text = shell.run(f"dd if=/dev/vdb bs=1M count={places * _MIB} 2> /dev/null | md5sum", 120)
    return text.split()[-2]  # after a possible message of the kernel


def wait_for_volume(shell: GuestShell) -> None:
    eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb || true"), 30,
               "the volume is usable for the guest's user")


def files(cinder: RealCinder, volume: str) -> set[str]:
    """Return the suffixes of the volume's files."""
    name = f"volume-{volume}"
    return {path.name.removeprefix(name) for path in cinder.export.iterdir() if path.name.startswith(name)}


def test_guest_data_survive_creation_and_deletion_of_volume_snapshots(cloud: RealCloud, cinder: RealCinder) -> None:
    volume = cinder.new()
    server = booted(cloud, volume, OPEN)
    snapshots: list[str] = []
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        # The guest also writes continuously.
        shell.run("(n=0; while [ ! -e /tmp/stop ]; do n=$((n + 1)); echo $n | dd of=/dev/vdb bs=512 "
                  f"seek={_COUNT} conv=sync 2> /dev/null; echo $n > /tmp/written; sync; done) & true")
        write(shell, 0)
        for place in (1, 2, 3):
            snapshots.append(cinder.snapshot(volume))
            write(shell, place)
        whole = shell.run("cat /tmp/part0 /tmp/part1 /tmp/part2 /tmp/part3 | md5sum").split()[-2]
        assert {"", *(f".{each}" for each in snapshots)} < files(cinder, volume)
        # Inner snapshots are merged into the oldest file, the last one is merged into the active file.
        for each in (snapshots[1], snapshots[0], snapshots[2]):
            cinder.drop_snapshot(each)
            assert digest(shell, 4) == whole
        assert f".{snapshots[1]}" not in files(cinder, volume)
        shell.run("touch /tmp/stop; wait")
        counted = int(shell.run("cat /tmp/written"))
        assert counted > 0
        path = f"/servers/{server}/os-volume_attachments"
        cloud.api.delete(f"{path}/{volume}")
        cinder.wait(volume, "available")
        eventually(lambda: "vdb" not in shell.run("cat /proc/partitions"), 30, "the volume is unplugged from the guest")
        # Attach again, so that the guest has no cached data.
        cloud.api.post(path, {"volumeAttachment": {"volumeId": volume}})
        cinder.wait(volume, "in-use")
        wait_for_volume(shell)
        assert digest(shell, 4) == whole
        assert int(shell.run(f"dd if=/dev/vdb bs=512 skip={_COUNT} count=1 2> /dev/null | tr -d '\\0'")) == counted
    cloud.nothing_left()
    assert cinder.attachments() == []
    cinder.wait(volume, "available")


def test_guest_with_a_volume_snapshot_is_rebooted_and_keeps_its_data(cloud: RealCloud, cinder: RealCinder) -> None:
    volume = cinder.new()
    server = booted(cloud, volume, ALWAYS_OPEN)
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        write(shell, 0)
        snapshot = cinder.snapshot(volume)
        write(shell, 1)
        whole = digest(shell, 2)
    asked = cloud.console(server).count("guest login:")
    cloud.api.action(server, "reboot", {"type": "HARD"})
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, "guest", asked + 1)  # input during the boot could be taken for the user name
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        assert digest(shell, 2) == whole
        cinder.drop_snapshot(snapshot)
        assert digest(shell, 2) == whole
    cloud.nothing_left()
    cinder.wait(volume, "available")
