"""Shares of real guests on two hosts: data are shared by guests and hosts, and a share follows its server."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Iterator

import pytest

from tests.integration.guest_shell import GuestShell
from tests.integration.hosts.two_hosts import RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud
from tests.integration.volumes.embedded_shares import new_share, statuses, wait_given

pytestmark = [needs_hosts, pytest.mark.root]

# Only root may mount, and the console user is not root. User data run only at the first boot.
_MOUNTS = base64.b64encode(b"""#!/bin/sh
cat > /etc/mount-docs << END
#!/bin/sh
while :; do
    grep -q ' /mnt/docs ' /proc/mounts || mount -t virtiofs docs /mnt/docs
    usleep 500000
done
END
chmod 755 /etc/mount-docs
mkdir -p /mnt/docs
sed -i '2i /etc/mount-docs > /dev/null 2>&1 &' /etc/init.d/boot
sync
""").decode()


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture
def cloud(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path) -> Iterator[RealCloud]:
    options = {"share": {"pool": str(hosts.site.shared / "shares"), "shared": True}}
    with real_cloud(rabbitmq, hosts, guest_image, options=options) as made:
        yield made


def ready(shell: GuestShell) -> None:
    eventually(lambda: "/mnt/docs" in shell.run("cat /proc/mounts"), 60, "the guest has mounted its share")


@pytest.mark.slow
def test_share_is_used_by_several_guests_and_follows_a_migration(cloud: RealCloud, hosts: RealHosts) -> None:
    api, share = cloud.api, new_share(cloud.nova)
    first, second = (cloud.boot(name, cloud.trio, on=host, user_data=_MOUNTS)
                     for name, host in zip(("first", "second"), hosts.hosts, strict=True))
    for server in (first, second):
        api.wait(server, "ACTIVE", BOOT)
        eventually(lambda server=server: "user-data ended: 0" in cloud.console(server), BOOT,
                   "the guest has prepared its mounts")
        api.action(server, "os-stop")
        api.wait(server, "SHUTOFF", BOOT)
        api.post(f"/servers/{server}/shares", {"share": {"share_id": share, "tag": "docs"}})
        wait_given(cloud.nova, server, 60)
        api.action(server, "os-start")
        api.wait(server, "ACTIVE", BOOT)
    with cloud.shell(first) as shell:
        ready(shell)
        shell.run("echo precious > /mnt/docs/note; sync")
    assert (hosts.site.shared / "shares" / share / "note").read_text() == "precious\n"
    with cloud.shell(second) as shell:
        ready(shell)
        assert shell.run("cat /mnt/docs/note") == "precious\n"

    api.action(first, "migrate")
    api.wait(first, "VERIFY_RESIZE", BOOT)
    assert cloud.host_of(first) is hosts.hosts[1]
    assert statuses(cloud.nova, first) == ["active"]
    with cloud.shell(first) as shell:
        ready(shell)
        assert shell.run("cat /mnt/docs/note") == "precious\n"
    api.action(first, "confirmResize")
    api.wait(first, "ACTIVE", BOOT)
    api.action(first, "os-stop")
    api.wait(first, "SHUTOFF", BOOT)
    eventually(lambda: statuses(cloud.nova, first) == ["inactive"], 30, "the share is inactive")
    assert api.request("DELETE", f"/servers/{first}/shares/{share}").status_code == 200
    eventually(lambda: statuses(cloud.nova, first) == [], 30, "the share is detached")
    cloud.nova.audit()
    cloud.nothing_left()
