"""Versioned payloads of resources other than servers."""

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec

from nova.notifications.versioned import Payload, time_of, wrapped
from nova.notifications.versioned import flavor as flavor
from nova.objects.accounts.keypair import Keypair
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.node import ComputeNode, Metric
from nova.objects.hosts.service import Service
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_group import ServerGroup
from nova.objects.volumes.volume import VolumeCounters


def without_id(of: Aggregate) -> Aggregate:
    """Return the aggregate as before its creation, without an id."""
    return msgspec.structs.replace(of, id=0)


def aggregate(of: Aggregate) -> Payload:
    return wrapped("AggregatePayload", "1.1", {
        "id": of.id or None, "uuid": of.uuid, "name": of.name, "hosts": list(of.hosts) if of.id else None,
        "metadata": dict(of.metadata)})


def aggregate_cache(of: Aggregate, host: str, cached: list[str], failed: list[str], index: int, total: int) -> Payload:
    return wrapped("AggregateCachePayload", "1.0", {
        "id": of.id, "uuid": of.uuid, "name": of.name, "host": host, "images_cached": cached, "images_failed": failed,
        "index": index, "total": total})


def keypair(of: Keypair, unknown: dict[str, Any]) -> Payload:
    """Return a KeypairPayload. ``unknown``: values for fields that are not known yet."""
    return wrapped("KeypairPayload", "1.0", {
        "user_id": of.user_id, "name": of.name, "fingerprint": of.fingerprint, "public_key": of.public_key,
        "type": of.type, **unknown})


def server_group(of: ServerGroup) -> Payload:
    return wrapped("ServerGroupPayload", "1.1", {
        "uuid": of.uuid, "name": of.name, "user_id": of.user_id, "project_id": of.project_id,
        "policies": [of.policy], "policy": of.policy, "rules": {name: str(rule) for name, rule in of.rules.items()},
        "members": list(of.members), "hosts": None})


def volume_usage(counted: VolumeCounters, of: Instance, now: datetime.datetime) -> Payload:
    return wrapped("VolumeUsagePayload", "1.0", {
        "volume_id": counted.volume_id, "project_id": of.project_id, "user_id": of.user_id,
        "availability_zone": of.availability_zone, "instance_uuid": of.uuid, "last_refreshed": time_of(now),
        "reads": counted.reads, "read_bytes": counted.read_bytes, "writes": counted.writes,
        "write_bytes": counted.write_bytes})


def service(of: Service) -> Payload:
    return wrapped("ServiceStatusPayload", "1.1", {
        "host": of.host, "binary": of.binary, "topic": of.topic, "report_count": 0, "disabled": of.disabled,
        "disabled_reason": of.disabled_reason, "availability_zone": of.availability_zone,
        "last_seen_up": time_of(of.last_seen_up), "forced_down": of.forced_down, "version": of.version,
        "uuid": of.uuid})


def metrics(of: ComputeNode, measured: Sequence[Metric]) -> Payload:
    return wrapped("MetricsPayload", "1.0", {
        "host": of.host, "host_ip": of.host_ip, "nodename": of.hypervisor_hostname,
        "metrics": [wrapped("MetricPayload", "1.0", {
            "name": metric.name, "value": metric.value, "numa_membw_values": None, "source": metric.source,
            "timestamp": time_of(metric.timestamp)}) for metric in measured]})
