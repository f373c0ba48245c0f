"""Versioned payloads of resources other than servers."""

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec

from nova.notifications.versioned import Payload, fields, time_of, wrapped
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
        **fields(of, "id uuid name"), "host": host, "images_cached": cached, "images_failed": failed, "index": index,
        "total": total})


def keypair(of: Keypair, unknown: dict[str, Any]) -> Payload:
    """Return a KeypairPayload. ``unknown``: values for fields that are not known yet."""
    return wrapped("KeypairPayload", "1.0", {
        **fields(of, "user_id name fingerprint public_key type"), **unknown})


def server_group(of: ServerGroup) -> Payload:
    return wrapped("ServerGroupPayload", "1.1", {
        **fields(of, "uuid name user_id project_id policy"), "policies": [of.policy], "members": list(of.members),
        "rules": {name: str(rule) for name, rule in of.rules.items()}, "hosts": None})


def volume_usage(counted: VolumeCounters, of: Instance, now: datetime.datetime) -> Payload:
    return wrapped("VolumeUsagePayload", "1.0", {
        **fields(of, "project_id user_id availability_zone"), "instance_uuid": of.uuid, "last_refreshed": time_of(now),
        **fields(counted, "volume_id reads read_bytes writes write_bytes")})


def service(of: Service) -> Payload:
    return wrapped("ServiceStatusPayload", "1.1", {
        **fields(of, "host binary topic disabled disabled_reason availability_zone forced_down version uuid"),
        "report_count": 0, "last_seen_up": time_of(of.last_seen_up)})


def metrics(of: ComputeNode, measured: Sequence[Metric]) -> Payload:
    return wrapped("MetricsPayload", "1.0", {
        "host": of.host, "host_ip": of.host_ip, "nodename": of.hypervisor_hostname,
        "metrics": [wrapped("MetricPayload", "1.0", {
            **fields(metric, "name value source"), "numa_membw_values": None, "timestamp": time_of(metric.timestamp)})
            for metric in measured]})
