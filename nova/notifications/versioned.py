"""Versioned payloads. Names, versions and fields are an interface: a new field is a new minor version."""

import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from nova.objects.accounts.flavor import Flavor
from nova.objects.accounts.keypair import Keypair
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.node import ComputeNode, Metric
from nova.objects.hosts.service import Service
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_group import ServerGroup
from nova.objects.volumes.volume import VolumeCounters

Payload = dict[str, Any]

# power_state -> its name; unknown states are named pending.
_POWER = {states.RUNNING: "running", states.POWER_PAUSED: "paused", states.SHUTDOWN: "shutdown",
          states.CRASHED: "crashed", states.POWER_SUSPENDED: "suspended"}
_TRACEBACK_LINE = re.compile(r'File "([^"]+)", line \d+, in (\S+)')  # a line of a traceback with file and function


def wrapped(name: str, version: str, data: Payload) -> Payload:
    return {"nova_object.name": name, "nova_object.namespace": "nova", "nova_object.version": version,
            "nova_object.data": data}


def fields(of: Any, names: str) -> Payload:
    """Return the values of these attributes, under the same names."""
    return {name: getattr(of, name) for name in names.split()}


def time_of(moment: datetime.datetime | None) -> str | None:
    """Return a time in UTC, in seconds."""
    return None if moment is None else moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def flavor(of: Flavor, projects: list[str] | None = None) -> Payload:
    """Return a FlavorPayload. ``projects``: the projects with access, or None if unknown."""
    return wrapped("FlavorPayload", "1.4", {
        **fields(of, "flavorid memory_mb vcpus root_gb ephemeral_gb name swap rxtx_factor disabled is_public"),
        "vcpu_weight": 0, "extra_specs": dict(of.extra_specs), "projects": projects, "description": of.description})


def failure(of: Failure) -> Payload:
    """Return an ExceptionPayload."""
    lines = _TRACEBACK_LINE.findall(of.details)
    path, function = lines[-1] if lines else ("", "")
    return wrapped("ExceptionPayload", "1.1", {
        "module_name": _module(path), "function_name": function, "exception": of.kind or "NovaException",
        "exception_message": of.message, "traceback": of.details})


def _module(path: str) -> str:
    """Return the module name of a path: nova.compute.host for .../nova/compute/host.py."""
    names = path.removesuffix(".py").split("/")
    return ".".join(names[len(names) - names[::-1].index("nova") - 1:]) if "nova" in names else names[-1]


def addresses(vifs: Iterable[VIF]) -> list[Payload]:
    return [wrapped("IpPayload", "1.0", {
        "label": vif.label, "mac": vif.mac, "meta": {}, "port_uuid": vif.id, "version": fixed.version,
        "address": fixed.address, "device_name": vif.devname}) for vif in vifs for fixed in vif.fixed_ips]


def volumes(of: Instance) -> list[Payload]:
    return [wrapped("BlockDevicePayload", "1.0", {
        **fields(device, "device_name boot_index delete_on_termination volume_id tag")}) for device in of.volumes]


def shares(of: Instance) -> list[Payload]:
    return [wrapped("SharePayload", "1.0", {
        "share_mapping_uuid": mapping.uuid, "share_id": mapping.share_id, "status": of.status_of(mapping),
        "tag": mapping.tag, "export_location": mapping.export_location}) for mapping in of.shares or ()]


def instance(of: Instance, now: datetime.datetime, context: dict[str, str], with_volumes: bool,
             with_shares: bool = False) -> Payload:
    """Return the fields of InstancePayload of a server. ``context``: request id, user and project of the change."""
    properties = of.image.properties if of.image else {}
    return {
        **fields(of, "uuid user_id reservation_id display_name display_description host node availability_zone "
                     "kernel_id ramdisk_id task_state progress locked locked_reason"),
        "tenant_id": of.project_id, "host_name": of.hostname, "os_type": properties.get("os_type"),
        "architecture": properties.get("hw_architecture") or properties.get("architecture"),
        "flavor": flavor(of.flavor), "image_uuid": of.image_ref, "key_name": of.key.name if of.key else None,
        "created_at": time_of(of.created_at), "launched_at": time_of(of.launched_at),
        "terminated_at": time_of(of.terminated_at), "deleted_at": time_of(of.terminated_at) if of.deleted else None,
        "updated_at": time_of(now), "state": of.vm_state, "power_state": _POWER.get(of.power_state, "pending"),
        "ip_addresses": [] if of.deleted else addresses(of.network_info),
        "block_devices": volumes(of) if with_volumes and not of.deleted else [], "metadata": dict(of.metadata),
        "auto_disk_config": of.disk_config, "request_id": context.get("request_id"),
        "action_initiator_user": context.get("user_id"), "action_initiator_project": context.get("project_id"),
        "shares": shares(of) if with_shares and not of.deleted else []}


def keypairs(of: Instance) -> list[Payload]:
    """Return the key pair that a server was created with."""
    return [] if of.key is None else [wrapped("KeypairPayload", "1.0", {
        "user_id": of.user_id, **fields(of.key, "name fingerprint public_key type")})]


def audit_period(begin: datetime.datetime, end: datetime.datetime) -> Payload:
    return wrapped("AuditPeriodPayload", "1.0", {
        "audit_period_beginning": time_of(begin), "audit_period_ending": time_of(end)})


# --- other resources ------------------------------------------------------------------------------------
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
