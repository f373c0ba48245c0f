"""Invariants after every crash, checked through the API, the database and the hypervisors.

nova.db.audit, which ``nova-manage audit`` and the unit tests of the engine also use, checks the records (claims,
quotas, addresses, actions). This module adds the checks that need a running system.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pytest
import requests
import sqlalchemy as sa

from nova.db import tables
from nova.objects.servers import states
from nova.virt.fake.disks import ASIDE
from tests.integration.cluster import Cluster
from tests.unit.databases import open_events, unfinished

# Seconds, as tests.integration.cluster configures them.
LEASE, HEARTBEAT, RECOVERY = 4.0, 1.0, 1.0
# Maximum seconds that a conductor waits for a lost reply while it renews its lease (Scheduler.select).
LONGEST_CALL = 20.0
# Seconds for the remaining work itself, on a busy machine with two cores.
SLACK = 20.0
# A lost step is detected when its lease ends, and the conductor that detects it may wait for a lost reply.
BOUND = LEASE + HEARTBEAT + RECOVERY + LONGEST_CALL + SLACK

# Final states, and the power state of a guest in them.
POWER_STATES = {
    "ACTIVE": states.RUNNING, "SHUTOFF": states.SHUTDOWN, "PAUSED": states.POWER_PAUSED,
    "SUSPENDED": states.POWER_SUSPENDED, "SOFT_DELETED": states.SHUTDOWN, "RESCUE": states.RUNNING,
    "SHELVED": states.SHUTDOWN, "SHELVED_OFFLOADED": states.SHUTDOWN}
# A resized server has claims on two hosts until the user confirms or reverts; its guest is on a single host.
_WAITS = "VERIFY_RESIZE"
# Number of servers whose actions are requested from the API.
_ASKED = 60


def check(nova: Cluster, accepted: Collection[str], *, deleted: Collection[str] = (), bound: float = BOUND) -> float:
    """Wait until every invariant holds, ``bound`` seconds at most; fail with all violations then.

    ``accepted`` are the servers of accepted create requests, ``deleted`` the servers whose delete was accepted, too.
    All other servers of the project are checked as well: a request whose response was lost may have created them.
    All started processes must run again. Returns the elapsed seconds.
    """
    begin = time.monotonic()
    while True:
        wrong = list(violations(nova, accepted, deleted))
        took = time.monotonic() - begin
        if not wrong:
            nova.no_crashes()
            return took
        if took > bound:
            shown = "\n".join(wrong[:40])
            pytest.fail(f"{len(wrong)} invariants do not hold after {bound:g} s:\n{shown}")
        time.sleep(0.3)


def violations(nova: Cluster, accepted: Collection[str], deleted: Collection[str] = ()) -> Iterator[str]:
    """Return the current violations. The expensive checks run only if the cheap checks find no violation."""
    wanted = _Wanted(set(accepted) - set(deleted), set(deleted))
    for look in (_servers, _guests, _volumes, _shares, _files, _interfaces, _disks, _images, _migrations, _sums,
                 _actions, _journal, _audit):
        try:
            found = list(look(nova, wanted))
        except (requests.RequestException, AssertionError, OSError, sa.exc.DBAPIError) as error:
            found = [f"{look.__name__.strip('_')}: {type(error).__name__}: {error}"]
        if found:
            yield from found
            return


def journal(nova: Cluster) -> list[tuple[str, str, str]]:
    """Return (create or remove, host, uuid) of every guest that appeared or vanished, in order.

    The journal is written by tests.crash.service; it is empty in a cluster with another launcher.
    """
    path = nova.directory / "guests.journal"
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(verb, host, uuid) for verb, host, uuid in lines]


def times_built(nova: Cluster) -> collections.Counter[str]:
    """Return the number of guests created for each server, on any host."""
    return collections.Counter(uuid for verb, _host, uuid in journal(nova) if verb == "create")


@dataclasses.dataclass(frozen=True)
class _Wanted:
    kept: set[str]
    deleted: set[str]


def _servers(nova: Cluster, wanted: _Wanted) -> Iterator[str]:
    """Check that every accepted server is in a final state that the API explains, or deleted if that was requested."""
    servers = nova.api.servers()
    for uuid in wanted.kept - servers.keys():
        yield f"{uuid} was accepted and is not there"
    for uuid in wanted.deleted & servers.keys():
        yield f"{uuid} was deleted and is still there: {_state(servers[uuid])}"
    for uuid, server in servers.items():
        if server["OS-EXT-STS:task_state"] is not None:
            yield f"{uuid} has something under way: {_state(server)}"
        elif server["status"] == "ERROR":
            fault = server.get("fault") or {}
            if not fault.get("message") or not fault.get("code"):
                yield f"{uuid} is in ERROR and nobody says why: {fault}"
        elif server["status"] == _WAITS:
            continue
        elif server["status"] not in POWER_STATES:
            yield f"{uuid} is in no final state: {_state(server)}"
        elif server["OS-EXT-STS:power_state"] != POWER_STATES[server["status"]]:
            yield f"{uuid} says that its guest is different: {_state(server)}"


def _state(server: dict[str, Any]) -> str:
    return (f"{server['status']}, task {server['OS-EXT-STS:task_state']}, power {server['OS-EXT-STS:power_state']}, "
            f"host {server['OS-EXT-SRV-ATTR:host']}")


def _guests(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that guests on running hosts match their servers and power states, and that none is on two hosts."""
    servers = nova.api.servers()
    where: dict[str, str] = {}
    for host, guests in guests_of(nova).items():
        for uuid, power_state in guests.items():
            if uuid in where:
                yield f"{uuid} runs on {where[uuid]} and on {host}"
            where[uuid] = host
            server = servers.get(uuid)
            if server is None or server["OS-EXT-SRV-ATTR:host"] != host:
                yield f"{uuid} runs on {host}, its server is {_state(server) if server else 'gone'}"
            elif power_state != POWER_STATES.get(server["status"], power_state) or (
                    server["status"] == _WAITS and power_state != server["OS-EXT-STS:power_state"]):
                yield f"the guest of {uuid} has power state {power_state}, its server is {_state(server)}"
    hosts = guests_of(nova).keys()
    for uuid, server in servers.items():
        host = server["OS-EXT-SRV-ATTR:host"]
        if server["status"] == "SHELVED_OFFLOADED" and host is None:
            continue
        if server["status"] != "ERROR" and uuid not in where and (host is None or host in hosts) and not (
                server["status"] == "SHUTOFF" and _is_to_be_made(nova, uuid)):
            yield f"{uuid} has no guest: {_state(server)}"


def _is_to_be_made(nova: Cluster, uuid: str) -> bool:
    """Return True if a rebuild failed, maybe between old and new disks: a server stopped then has no guest until its
    next start."""
    found = nova.api.get(f"/servers/{uuid}/os-instance-actions")["instanceActions"]
    return any(action["action"] == "rebuild" and action["message"] for action in found)


def guests_of(nova: Cluster) -> dict[str, dict[str, int]]:
    """Return host -> uuid -> power state, as stored by the fake hypervisors of the running computes."""
    return {host: {uuid: guest["power_state"] for uuid, guest in guests.items()}
            for host, guests in _remembered(nova).items()}


def _remembered(nova: Cluster) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, process in nova.processes.items():
        if name.startswith("compute") and process.running():
            guests = found[name] = {}
            path = nova.directory / "guests" / f"{name}.guests"
            for line in path.read_text().splitlines() if path.exists() else []:
                uuid, _, values = line.partition(" ")
                guest = None if values == "-" else json.loads(values)
                if guest is None or guest.get("incoming"):
                    guests.pop(uuid, None)
                else:
                    guests[uuid] = guest
    return found


def _volumes(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that every volume is free or attached to a single server, and that only this server's guest uses it."""
    servers, owned = nova.api.servers(), _outside_volumes(nova)
    for row in _rows(nova, sa.select(tables.volumes)):
        if row.status not in ("available", "in-use") or (row.status == "in-use") != (row.instance_uuid is not None):
            yield f"volume {row.uuid} is {row.status} and belongs to {row.instance_uuid}"
        owned[row.instance_uuid].add(row.uuid)
    for host, guests in _remembered(nova).items():
        for uuid, guest in guests.items():
            has = {volume for _device, volume in guest.get("volumes", ())}
            if has - owned[uuid] or (has != owned[uuid] and servers[uuid]["status"] != "ERROR"):
                yield f"the guest of {uuid} on {host} has volumes {has}, its server {owned[uuid]}"


def _shares(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that every running guest has the shares of its server."""
    rows = _rows(nova, sa.select(tables.instances.c.uuid, tables.instances.c.vm_state, tables.instances.c.shares).where(
        tables.instances.c.deleted == sa.false()))
    wanted = {row.uuid: {mapping.tag for mapping in row.shares or () if mapping.status == "inactive"}
              for row in rows if row.vm_state == states.ACTIVE}
    for host, guests in _remembered(nova).items():
        for uuid, guest in guests.items():
            has = {tag for tag, _path in guest.get("shares", ())}
            if uuid in wanted and guest["power_state"] == states.RUNNING and not guest.get("went") \
                    and has != wanted[uuid]:
                yield f"the guest of {uuid} on {host} has shares {has}, its server {wanted[uuid]}"


def _files(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that every guest writes to the file of the volume that its server would start with."""
    rows = _rows(nova, sa.select(tables.instances.c.uuid, tables.instances.c.block_devices).where(
        tables.instances.c.deleted == sa.false()))
    known = {row.uuid: {device.volume_id: device for device in row.block_devices if device.is_volume} for row in rows}
    for host, guests in _remembered(nova).items():
        for uuid, guest in guests.items():
            for volume, newest, *_below in guest.get("files", ()):
                device = known.get(uuid, {}).get(volume)
                if device is not None and device.connection_info.get("name", newest) != newest:  # (no name: embedded)
                    yield f"the guest of {uuid} on {host} writes to {newest}, its server has {device.connection_info}"


def _outside_volumes(nova: Cluster) -> dict[str, set[str]]:
    """Return the external volumes of each server."""
    known = {row.uuid for row in _rows(nova, sa.select(tables.volumes.c.uuid))}
    owned: dict[str, set[str]] = collections.defaultdict(set)
    for row in _rows(nova, sa.select(tables.instances.c.uuid, tables.instances.c.block_devices).where(
            tables.instances.c.deleted == sa.false())):
        owned[row.uuid] = {device.volume_id for device in row.block_devices if device.is_volume} - known
    return owned


def _interfaces(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that every guest has the interfaces of its server, and is rescued if its server is."""
    rows = {row.uuid: row for row in _rows(nova, sa.select(
        tables.instances.c.uuid, tables.instances.c.vm_state, tables.instances.c.network_info).where(
        tables.instances.c.deleted == sa.false(), tables.instances.c.vm_state != states.ERROR))}
    for host, guests in _remembered(nova).items():
        for uuid, guest in guests.items():
            if (row := rows.get(uuid)) is None:
                continue
            has, wanted = sorted(guest.get("interfaces", ())), sorted(vif.mac for vif in row.network_info)
            if has != wanted:
                yield f"the guest of {uuid} on {host} has interfaces {has}, its server {wanted}"
            if bool(guest.get("rescued")) != (row.vm_state == states.RESCUED):
                yield f"the guest of {uuid} on {host} is rescued from {guest.get('rescued')}, its server {row.vm_state}"


def _disks(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that each shared disk belongs to a server with a host, and each retained disk to a resized server."""
    servers = nova.api.servers()
    for name in disks_of(nova):
        uuid = name.removesuffix(ASIDE)
        if uuid not in servers:
            yield f"disk {name} is left of a server that is gone"
        elif servers[uuid]["status"] == "SHELVED_OFFLOADED" or (
                name != uuid and servers[uuid]["status"] not in (_WAITS, "ERROR")):
            yield f"disk {name} is left: {_state(servers[uuid])}"


def disks_of(nova: Cluster) -> list[str]:
    """Return the disks in the storage of all hosts, by uuid, with the suffix ASIDE for retained disks."""
    return sorted(path.name for path in nova.directory.glob("guests/disks/*") if not path.name.startswith("."))


def _migrations(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that exactly the servers in VERIFY_RESIZE have an open migration, and that it is finished."""
    servers = nova.api.servers()
    waiting = {uuid for uuid, server in servers.items() if server["status"] == _WAITS}
    opened = {row.instance_uuid: row for row in _moving(nova)}
    same_host = "allow_resize_to_same_host = True" in nova.config.read_text()
    for uuid in waiting ^ opened.keys():
        state = _state(servers[uuid]) if uuid in servers else "gone"
        yield f"{uuid}: open migration {opened.get(uuid)}, server {state}"
    for uuid in waiting & opened.keys():
        row, host = opened[uuid], servers[uuid]["OS-EXT-SRV-ATTR:host"]
        if row.status != "finished" or row.dest_compute != host or (row.source_compute == host and not same_host):
            yield f"{uuid} is on {host}, its migration is {row.status} {row.source_compute} -> {row.dest_compute}"


def _moving(nova: Cluster) -> Sequence[Any]:
    """Return the open migrations."""
    return _rows(nova, sa.select(tables.migrations).where(tables.migrations.c.open == sa.true()))


def _images(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that no image waits for data, and that no server leaves its shelve image after it is unshelved."""
    shelved = {uuid for uuid, server in nova.api.servers().items() if server["status"].startswith("SHELVED")}
    for image in nova.api.get("/images/detail", version="2.35")["images"]:
        server = image["metadata"].get("instance_uuid")
        if image["status"] != "ACTIVE":
            yield f"image {image['name']} of {server} is {image['status']}"
        if image["name"].endswith("-shelved") and server not in shelved:
            yield f"image {image['name']} is left of {server}"


def images_of_servers(nova: Cluster) -> collections.Counter[str]:
    """Return the number of images of each server."""
    found = nova.api.get("/images/detail", version="2.35")["images"]
    return collections.Counter(image["metadata"].get("instance_uuid") for image in found)


def _rows(nova: Cluster, statement: sa.Select[Any]) -> Sequence[Any]:
    engine = sa.create_engine(nova.database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        return connection.execute(statement).all()


def _sums(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that usage shown by hypervisors and limits equals the sums over the flavors of the servers."""
    servers, moving = nova.api.servers(), _moving(nova)
    for node in nova.api.get("/os-hypervisors/detail", version="2.87")["hypervisors"]:
        here = [server for server in servers.values()
                if server["OS-EXT-SRV-ATTR:hypervisor_hostname"] == node["hypervisor_hostname"]]
        # A server that was moved away and may be reverted keeps its claim here.
        left = {row.instance_uuid: row.old_flavor for row in moving if row.source_node == node["hypervisor_hostname"]}
        sums = {"vcpus_used": _sum(here, "vcpus") + sum(flavor.vcpus for flavor in left.values()),
                "memory_mb_used": _sum(here, "ram") + sum(flavor.memory_mb for flavor in left.values()),
                # A server that boots from a volume has no local disk.
                "local_gb_used": _sum((server for server in here if server["image"]), "disk") + sum(
                    flavor.root_gb for uuid, flavor in left.items() if servers[uuid]["image"]),
                "running_vms": len(here) + len(left), "current_workload": 0}
        yield from (f"{node['hypervisor_hostname']}: {name} is {node[name]}, its servers sum up to {value}"
                    for name, value in sums.items() if node[name] != value)
    limits = nova.api.get("/limits")["limits"]["absolute"]
    counted = [server for server in servers.values() if server["status"] != "SOFT_DELETED"]
    charged = {"totalInstancesUsed": len(counted), "totalCoresUsed": _sum(counted, "vcpus"),
               "totalRAMUsed": _sum(counted, "ram")}
    yield from (f"{name} is {limits[name]}, the servers sum up to {value}"
                for name, value in charged.items() if limits[name] != value)


def _sum(servers: Iterable[dict[str, Any]], name: str) -> int:
    return sum(server["flavor"][name] for server in servers)


def _actions(nova: Cluster, wanted: _Wanted) -> Iterator[str]:
    """Check that no action is running, and that every step in os-instance-actions has a result."""
    engine = sa.create_engine(nova.database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        yield from (f"under way: {operation}" for operation in unfinished(connection))
        yield from (f"no result: {event}" for event in open_events(connection))
    # The view of the API, for a limited number of servers.
    for uuid in sorted(wanted.kept | wanted.deleted)[:_ASKED]:
        path = f"/servers/{uuid}/os-instance-actions"
        for action in nova.api.get(path)["instanceActions"]:
            shown = nova.api.get(f"{path}/{action['request_id']}")["instanceAction"]
            yield from (f"{uuid}: {action['action']}: {event['event']} has no result" for event in shown["events"]
                        if event["result"] not in ("Success", "Error") or not event["finish_time"])


def _journal(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that the guests that were created and not removed are the existing guests."""
    there: dict[tuple[str, str], int] = collections.Counter()
    for verb, host, uuid in journal(nova):
        there[host, uuid] += 1 if verb == "create" else -1
    if there:
        left = {key for key, count in there.items() if count}
        guests = {(host, uuid) for host, guests in guests_of(nova).items() for uuid in guests}
        yield from (f"journal and guests differ: {host} {uuid}" for host, uuid in sorted(left ^ guests)
                    if nova.processes[host].running())
        yield from (f"{uuid} was made twice on {host}" for (host, uuid), count in there.items() if count > 1)


def _audit(nova: Cluster, _wanted: _Wanted) -> Iterator[str]:
    """Check that ``nova-manage audit`` prints nothing."""
    nova.audit()
    yield from ()
