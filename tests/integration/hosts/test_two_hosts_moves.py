"""Connectivity, live migration and resize of real guests on two hosts."""

from __future__ import annotations

import base64
import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.guest_shell import count_in_background
from tests.integration.hosts.two_hosts import RealHost, RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit
from tests.integration.real_cloud import BOOT, RealCloud, real_cloud

pytestmark = [needs_hosts, pytest.mark.root]

# Slow enough (in MiB/s) to observe the progress of a migration.
_OPTIONS = {"libvirt": {"live_migration_bandwidth": 24, "live_migration_monitor_interval": 1}}
# Maximum duration of a small guest's migration on a loaded machine, in seconds.
_MIGRATION = 120.0
# Allows the console user of the guest to run ping.
_MAY_PING = base64.b64encode(b"#!/bin/sh\ncp /bin/busybox /run/ping\nchmod 4755 /run/ping\n").decode()
# The last microversion with /os-security-group-rules.
_OLD = "2.35"
# Ten per second.
_PINGS = 400


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def cloud(rabbitmq: Rabbit, hosts: RealHosts, guest_image: pathlib.Path) -> Iterator[RealCloud]:
    with real_cloud(rabbitmq, hosts, guest_image, options=_OPTIONS) as made:
        made.nova.flavor("more", ram=192, disk=2)
        group = made.api.get("/os-security-groups", _OLD)["security_groups"][0]["id"]
        everybody = {"ip_protocol": "icmp", "from_port": -1, "to_port": -1, "cidr": "0.0.0.0/0"}
        made.api.post("/os-security-group-rules", {
            "security_group_rule": {"parent_group_id": group, **everybody}}, _OLD)
        yield made


@pytest.fixture
def pair(cloud: RealCloud) -> Iterator[tuple[str, str]]:
    """Boot a guest on each host, and check afterwards that nothing is left of the guests."""
    uuids = [cloud.boot(f"on-{host.name}", cloud.trio, on=host, networks=cloud.wide_network(), user_data=_MAY_PING)
             for host in cloud.hosts.hosts]
    for uuid in uuids:
        cloud.api.wait(uuid, "ACTIVE", BOOT)
    yield uuids[0], uuids[1]
    cloud.nothing_left()


def test_live_migrated_guest_keeps_running_and_stays_reachable(cloud: RealCloud, pair: tuple[str, str]) -> None:
    first, second = cloud.hosts.hosts
    moving, peer = pair
    with cloud.shell(moving) as shell:
        shell.run(count_in_background("usleep 100000"))
    target = cloud.address(moving)
    with cloud.shell(peer) as shell:
        shell.run(f"/run/ping -c 3 -A -W 5 {target}")
        # Not a child of the shell: busybox's shell may take the end of a job for the end of its input.
        shell.run(f"((/run/ping -q -c {_PINGS} -i 0.1 -W 5 {target} > /tmp/pings 2>&1; echo ended >> /tmp/pings) &)")
    with cloud.shell(moving) as shell:
        before = int(shell.run("cat /tmp/count"))

    told = migrated(cloud, moving, second)
    assert told, "no progress was reported during the migration"
    for progress in told:
        assert progress["memory_total_bytes"] >= 128 << 20
        assert progress["disk_total_bytes"] > 0
        assert progress["memory_remaining_bytes"] <= progress["memory_total_bytes"]
    assert first.domains() == []

    with cloud.shell(moving) as shell:
        shell.run("kill -0 $(cat /tmp/pid)")
        after = int(shell.run("cat /tmp/count"))
        assert after >= before
        eventually(lambda: int(shell.run("cat /tmp/count")) > after, 30, "the guest continues to count")
    with cloud.shell(peer) as shell:
        eventually(lambda: "ended" in shell.run("cat /tmp/pings"), BOOT, "the pings have ended", interval=1.0)
        pings = shell.run("cat /tmp/pings")
        lost = re.search(r"(\d+)% packet loss", pings)
        assert lost, pings[-300:]
        assert int(lost[1]) <= 2, pings[-300:]
        # Migrate back, so that the traffic uses the tunnel again.
        assert migrated(cloud, moving, first)
        shell.run(f"/run/ping -c 3 -A -W 5 {target}")
    with cloud.shell(moving) as shell:
        shell.run("kill -0 $(cat /tmp/pid)")
    cloud.nova.audit()


def test_resized_guest_has_the_new_sizes_and_a_reverted_one_the_old(cloud: RealCloud) -> None:
    first, second = cloud.hosts.hosts
    uuid = cloud.booted("sized", cloud.trio, networks=cloud.wide_network())
    small = sizes(cloud, uuid)
    assert small["disk"] == 1 << 20
    for answer in ("revertResize", "confirmResize"):
        cloud.api.action(uuid, "resize", {"flavorRef": "more"})
        cloud.api.wait(uuid, "VERIFY_RESIZE", 2 * BOOT)
        assert cloud.host_of(uuid) is second
        assert cloud.note(uuid) == "sized"
        more = sizes(cloud, uuid)
        assert more["disk"] == 2 << 20
        assert small["memory"] + (50 << 10) < more["memory"] < 192 << 10
        cloud.api.action(uuid, answer)
        cloud.api.wait(uuid, "ACTIVE", BOOT)
        if answer == "revertResize":
            assert cloud.host_of(uuid) is first
            assert cloud.note(uuid) == "sized"
            reverted = sizes(cloud, uuid)
            assert reverted["disk"] == small["disk"]
            assert abs(reverted["memory"] - small["memory"]) < 1024, "the memory sizes differ"
    assert [len(host.domains()) for host in (first, second)] == [0, 1]
    eventually(lambda: uuid not in first.host.run(["ls", str(cloud.instances)]), 30, "the source has removed the guest")
    cloud.nothing_left()


def sizes(cloud: RealCloud, uuid: str) -> dict[str, int]:
    """Return the sizes that the guest reports, in KiB."""
    with cloud.shell(uuid) as shell:
        memory = re.search(r"MemTotal: +(\d+) kB", shell.run("cat /proc/meminfo"))
        disk = re.search(r"(\d+) vda\n", shell.run("cat /proc/partitions"))
    assert memory
    assert disk
    return {"memory": int(memory[1]), "disk": int(disk[1])}


def migrated(cloud: RealCloud, uuid: str, host: RealHost) -> list[dict[str, Any]]:
    """Live-migrate the guest to the host and return the migration progress reported meanwhile."""
    told: list[dict[str, Any]] = []
    cloud.api.action(uuid, "os-migrateLive", {"host": host.name, "block_migration": "auto"})

    def ended() -> bool:
        with contextlib.suppress(AssertionError):
            told.extend(one for one in cloud.api.get(f"/servers/{uuid}/migrations")["migrations"]
                        if one["status"] == "running" and one["memory_total_bytes"] is not None)
        return cloud.api.show(uuid)["OS-EXT-STS:task_state"] is None

    eventually(ended, _MIGRATION, f"{uuid} has migrated", interval=0.05)
    shown = cloud.api.show(uuid)
    assert shown["status"] == "ACTIVE", shown
    assert cloud.host_of(uuid) is host, cloud.api.get(f"/os-migrations?instance_uuid={uuid}")
    assert len(host.domains()) >= 1
    return told
