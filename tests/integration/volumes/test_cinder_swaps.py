"""Migrations of attached volumes between back ends of a real Cinder, by volume swaps of Nova."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.databases import Server
from tests.integration.guest_shell import GuestShell
from tests.integration.hosts.two_hosts import needs_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud
from tests.integration.volumes.cinder_cloud import cloud_fixture, hosts_fixture  # noqa: F401 (fixtures)
from tests.integration.volumes.real_cinder import RealCinder, needs_cinder, real_cinder
from tests.integration.volumes.test_volumes_guests import OPEN

pytestmark = [needs_hosts, needs_cinder, pytest.mark.root]

# The block in which the guest counts.
_COUNT = 100 << 11


@pytest.fixture(name="cinder", scope="module")
def cinder_fixture(rabbitmq: Rabbit, mariadb: Server) -> Iterator[RealCinder]:
    with real_cinder(rabbitmq, mariadb, backends=("one", "two")) as made:
        yield made


def booted(cloud: RealCloud, volume: str) -> str:
    """Boot a server with the volume, because the kernel logs a later attachment to the console during the login."""
    server = cloud.boot("guest", cloud.trio, user_data=OPEN, block_device_mapping_v2=[
        {"source_type": "volume", "uuid": volume, "destination_type": "volume"}])
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, "guest")
    return server


def wait_for_volume(shell: GuestShell) -> None:
    eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb || true"), 30,
               "the volume is usable for the guest's user")


def digest(shell: GuestShell) -> str:
    """Return the digest of the beginning of the volume."""
    return shell.run("dd if=/dev/vdb bs=1M count=16 2> /dev/null | md5sum", 120).split()[-2]


def wait_until_moved(cloud: RealCloud, cinder: RealCinder, volume: str, backend: str) -> None:
    def look() -> bool:
        shown = cinder.volume(volume)
        assert shown["migration_status"] != "error", cinder.tail()
        return (shown["migration_status"], shown["status"], shown["os-vol-host-attr:host"]) == (
            "success", "in-use", f"cin@{backend}#{backend}")

    eventually(look, 180, f"the volume is in {backend}: {cinder.volume(volume)}", interval=0.5)
    eventually(cloud.nova.books_balance, 60, "Nova has completed the swap")


def test_guest_data_survive_a_retype_to_another_back_end(cloud: RealCloud, cinder: RealCinder) -> None:
    volume = cinder.new(volume_type="one")
    server = booted(cloud, volume)
    path = f"/servers/{server}/os-volume_attachments"
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        shell.run("dd if=/dev/urandom of=/dev/vdb bs=1M count=16 2> /dev/null; sync", 120)
        whole = digest(shell)
        # The guest writes continuously.
        shell.run("(n=0; while [ ! -e /tmp/stop ]; do n=$((n + 1)); echo $n | dd of=/dev/vdb bs=512 "
                  f"seek={_COUNT} conv=sync 2> /dev/null; echo $n > /tmp/written; sync; done) & true")
        cinder.ask("POST", f"/volumes/{volume}/action", {"os-retype": {
            "new_type": "two", "migration_policy": "on-demand"}})
        wait_until_moved(cloud, cinder, volume, "two")
        shown = cinder.volume(volume)
        attached, = shown["attachments"]
        assert shown["volume_type"] == "two"
        assert (attached["server_id"], attached["host_name"]) == (server, cloud.hosts.hosts[0].name)
        assert [each["id"] for each in cinder.attachments()] == [attached["attachment_id"]]
        item, = cloud.api.get(path)["volumeAttachments"]
        assert (item["volumeId"], item["attachment_id"], item["device"]) == (
            volume, attached["attachment_id"], "/dev/vdb")
        assert [each["id"] for each in cinder.ask("GET", "/volumes")["volumes"]] == [volume]
        eventually(lambda: not cinder.files("one"), 60, "the volume's files in the old back end are deleted")

        shell.run("touch /tmp/stop; wait")
        counted = int(shell.run("cat /tmp/written"))
        assert counted > 0
        # Attach again, so that the guest has no cached data.
        cloud.api.delete(f"{path}/{volume}")
        cinder.wait(volume, "available")
        eventually(lambda: "vdb" not in shell.run("cat /proc/partitions"), 30, "the volume is unplugged from the guest")
        cloud.api.post(path, {"volumeAttachment": {"volumeId": volume}})
        cinder.wait(volume, "in-use")
        wait_for_volume(shell)
        assert digest(shell) == whole
        assert int(shell.run(f"dd if=/dev/vdb bs=512 skip={_COUNT} count=1 2> /dev/null | tr -d '\\0'")) == counted
    cloud.nothing_left()
    assert cinder.attachments() == []
    cinder.drop(volume)
    assert cinder.files() == {}


def test_migrated_volume_is_snapshotted_and_migrated_back(cloud: RealCloud, cinder: RealCinder) -> None:
    """After the migration, the volume's file has the name of another volume."""
    volume = cinder.new()  # of a type without a fixed back end
    backends = ["two", "one"] if cinder.volume(volume)["os-vol-host-attr:host"].endswith("#one") else ["one", "two"]
    server = booted(cloud, volume)
    with cloud.shell(server) as shell:
        wait_for_volume(shell)
        shell.run("dd if=/dev/urandom of=/dev/vdb bs=1M count=16 2> /dev/null; sync", 120)
        for backend in backends:
            cinder.ask("POST", f"/volumes/{volume}/action", {"os-migrate_volume": {
                "host": f"cin@{backend}#{backend}", "force_host_copy": False}})
            wait_until_moved(cloud, cinder, volume, backend)
            snapshot = cinder.snapshot(volume)
            shell.run("echo later | dd of=/dev/vdb bs=512 seek=1000000 conv=sync 2> /dev/null; sync")
            whole = digest(shell)
            cinder.drop_snapshot(snapshot)
            assert digest(shell) == whole
            text = shell.run("dd if=/dev/vdb bs=512 skip=1000000 count=1 2> /dev/null | head -c 5")
            assert text.endswith("later")
    cloud.nothing_left()
    assert cinder.attachments() == []
    cinder.wait(volume, "available")
    cinder.drop(volume)
    assert cinder.files() == {}


def test_volume_swap_by_a_user_is_refused(cloud: RealCloud, cinder: RealCinder) -> None:
    old, new = cinder.new(volume_type="one"), cinder.new(volume_type="two")
    server = booted(cloud, old)
    refused = cloud.api.request("PUT", f"/servers/{server}/os-volume_attachments/{old}",
                                {"volumeAttachment": {"volumeId": new}})
    assert refused.status_code == 409, refused.text
    assert (cinder.volume(old)["status"], cinder.volume(new)["status"]) == ("in-use", "available")
    assert [each["volume_id"] for each in cinder.attachments()] == [old]
    cloud.nothing_left()
    for volume in (old, new):
        cinder.wait(volume, "available")
        cinder.drop(volume)
