"""Real guests with volumes of a real Cinder on NFS."""

from __future__ import annotations

import pytest

from tests.integration.hosts.two_hosts import needs_hosts
from tests.integration.processes import eventually
from tests.integration.real_cloud import BOOT, RealCloud
from tests.integration.volumes.cinder_cloud import cloud_fixture, hosts_fixture  # noqa: F401 (fixtures)
from tests.integration.volumes.real_cinder import RealCinder, cinder_fixture, needs_cinder  # noqa: F401 (fixture)
from tests.integration.volumes.test_volumes_guests import OPEN

pytestmark = [needs_hosts, needs_cinder, pytest.mark.root]


def test_data_on_a_cinder_volume_survives_detach_and_attach(cloud: RealCloud, cinder: RealCinder) -> None:
    volume = cinder.new()
    server = cloud.boot("guest", cloud.trio, user_data=OPEN)
    cloud.api.wait(server, "ACTIVE", BOOT)
    cloud.wait_for_login(server, "guest")
    path = f"/servers/{server}/os-volume_attachments"
    cloud.api.post(path, {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")
    with cloud.shell(server) as shell:
        eventually(lambda: "1048576 vdb" in shell.run("cat /proc/partitions"), 30, "the guest sees its volume")
        assert volume.replace("-", "")[:16] in shell.run("cat /sys/block/vdb/serial").replace("-", "")
        eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb"), 30,
                   "the volume is writable for the guest's user")
        shell.run("echo precious > /dev/vdb; sync")
    cloud.api.delete(f"{path}/{volume}")
    cinder.wait(volume, "available")
    with cloud.shell(server) as shell:
        eventually(lambda: "vdb" not in shell.run("cat /proc/partitions"), 30, "the volume is unplugged from the guest")
    assert cinder.export.joinpath(f"volume-{volume}").read_bytes()[:8] == b"precious"
    cloud.api.post(path, {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")
    with cloud.shell(server) as shell:
        eventually(lambda: "rw-rw-rw-" in shell.run("ls -l /dev/vdb"), 30,
                   "the volume is readable for the guest's user")
        assert shell.run("head -c 8 /dev/vdb") == "precious"
    cloud.nothing_left()
    assert cinder.attachments() == []
    cinder.wait(volume, "available")
