"""Drain of a host while conductors die: every server moves, and no move starts twice."""

from __future__ import annotations

import json

from nova.objects.hosts import drain as drains
from tests.crash import invariants
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually

SOURCE, DESTINATION = "compute-1", "compute-2"


def _told(nova: Cluster) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the state of the drain, and the line of each server by its id."""
    told = json.loads(nova._run("manage", ("host", "drain", SOURCE, "--status", "--json"), 60.0).stdout)
    return told["drain"].get("state", drains.RUNNING), {line["instance_uuid"]: line for line in told["servers"]}


def test_host_drain_completes_after_conductors_are_killed(nova: Cluster) -> None:
    conductors = [name for name in nova.processes if name.startswith("conductor")]
    uuids = [nova.api.boot(f"drained-{number}", host=SOURCE) for number in range(6)]
    nova.all_active(uuids, 60.0)
    for uuid in uuids[:3]:
        nova.api.action(uuid, "os-stop")
        nova.api.wait(uuid, "SHUTOFF", 40.0)
    assert nova._run("manage", ("host", "drain", SOURCE, "--timeout", "0"), 60.0).returncode == 3
    for name in conductors:
        nova.kill(name)
        nova.start(name)
    eventually(lambda: _told(nova)[0] == drains.ENDED, 2 * invariants.BOUND, "the host is empty", interval=0.5)
    lines = _told(nova)[1]
    assert {uuid: (line["state"], line["destination"]) for uuid, line in lines.items()} == dict.fromkeys(
        uuids, (drains.MOVED, DESTINATION))
    assert {uuid: nova.api.servers()[uuid]["status"] for uuid in uuids} == {
        **dict.fromkeys(uuids[:3], "SHUTOFF"), **dict.fromkeys(uuids[3:], "ACTIVE")}
    invariants.check(nova, uuids)
    service = nova.api.get(f"/os-services?binary=nova-compute&host={SOURCE}")["services"][0]
    assert nova.api.request("PUT", f"/os-services/{service['id']}", {"status": "enabled"}).status_code == 200
