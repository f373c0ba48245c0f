"""Unversioned notifications: event types and payloads in the legacy format."""

import datetime
from collections.abc import Sequence
from typing import Any

from nova.notifications.versioned import fields
from nova.objects.accounts.keypair import Keypair
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.node import PERCENT, ComputeNode, Metric
from nova.objects.images.image import METADATA
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_group import ServerGroup
from nova.objects.volumes.volume import VolumeCounters

# Name of a versioned event with phases -> name of the unversioned event.
_PHASED = {
    **{name: name for name in (
        "create", "delete", "pause", "unpause", "power_off", "power_on", "reboot", "rebuild", "rescue", "unrescue",
        "resize", "restore", "resume", "shelve", "shelve_offload", "unshelve", "shutdown", "snapshot", "soft_delete",
        "suspend", "trigger_crash_dump")},
    "resize_finish": "finish_resize", "resize_confirm": "resize.confirm", "resize_prep": "resize.prep",
    "resize_revert": "resize.revert", "live_migration_abort": "live.migration.abort",
    "live_migration_force_complete": "live.migration.force.complete", "live_migration_pre": "live_migration.pre",
    "live_migration_post": "live_migration._post", "live_migration_post_dest": "live_migration.post.dest",
    "live_migration_rollback": "live_migration._rollback",
    "live_migration_rollback_dest": "live_migration.rollback.dest",
}
_FAILING = frozenset({"create", "reboot", "rebuild", "resize"})  # events that have an error phase
# (event, phase) -> name of an unversioned event without phases.
_SINGLE = {("rebuild_scheduled", ""): "rebuild.scheduled", ("evacuate", ""): "evacuate", ("exists", ""): "exists",
            ("update", ""): "update", ("volume_attach", "end"): "volume.attach",
            ("volume_detach", "end"): "volume.detach"}


def event_of(event: str, phase: str) -> str | None:
    """Return the unversioned event type of an event of a server, or None if it has only versioned notifications."""
    name = _SINGLE.get((event, phase))
    if name is None and event in _PHASED and (phase in ("start", "end") or (phase == "error" and event in _FAILING)):
        name = f"{_PHASED[event]}.{phase}"
    return f"compute.instance.{name}" if name else None


def _time(moment: datetime.datetime | None) -> str:
    return "" if moment is None else str(moment.astimezone(datetime.UTC).replace(tzinfo=None))


def instance(of: Instance, more: dict[str, Any], failure: Failure | None, with_volumes: bool) -> dict[str, Any]:
    """Return the payload of an event of a server. ``more``: fields of the event, in the versioned format."""
    flavor = of.flavor
    properties = of.image.properties if of.image else {}
    payload: dict[str, Any] = {
        **fields(of, "user_id display_name display_description reservation_id hostname host node availability_zone "
                     "kernel_id ramdisk_id progress access_ip_v4 access_ip_v6"),
        "tenant_id": of.project_id, "instance_id": of.uuid, "instance_type": flavor.name,
        "instance_type_id": flavor.id, "instance_flavor_id": flavor.flavorid, "cell_name": "",
        "architecture": properties.get("hw_architecture") or properties.get("architecture"),
        **fields(flavor, "memory_mb vcpus root_gb ephemeral_gb"), "disk_gb": flavor.root_gb + flavor.ephemeral_gb,
        "created_at": _time(of.created_at), "terminated_at": _time(of.terminated_at),
        "deleted_at": _time(of.terminated_at) if of.deleted else "", "launched_at": _time(of.launched_at),
        "image_ref_url": of.image_ref, "os_type": properties.get("os_type"),
        "state": of.vm_state, "state_description": of.task_state or "", "metadata": dict(of.metadata),
        "image_meta": {name.removeprefix(METADATA): value for name, value in of.system_metadata.items()
                       if name.startswith(METADATA)},
        "fixed_ips": [] if of.deleted else [
            {"address": fixed.address, "version": fixed.version, "type": "fixed", "floating_ips": [], "meta": {},
             "label": vif.label, "vif_mac": vif.mac} for vif in of.network_info for fixed in vif.fixed_ips],
        **_flat(more)}
    if with_volumes and not of.deleted:
        payload["block_devices"] = [device.volume_id for device in of.volumes]
    if failure is not None:
        payload |= {"message": failure.message, "exception": failure.kind, "code": failure.code}
    return payload


def _flat(more: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with nested payloads flattened, and without None."""
    flat: dict[str, Any] = {}
    for name, value in more.items():
        if isinstance(value, dict) and "nova_object.data" in value:
            data = value["nova_object.data"]
            flat |= data if name != "new_flavor" else {
                "new_instance_type": data["name"], "new_instance_type_id": data["flavorid"]}
        elif value is not None:
            flat[name] = value
    return flat


# --- other resources ------------------------------------------------------------------------------------
def aggregate(of: Aggregate) -> dict[str, Any]:
    return {"aggregate_id": of.id or None, "name": of.name, "host_list": list(of.hosts), "meta_data": dict(of.metadata)}


def keypair(of: Keypair, project_id: str | None) -> dict[str, Any]:
    return {"tenant_id": project_id, "user_id": of.user_id, "key_name": of.name}


def server_group(of: ServerGroup) -> dict[str, Any]:
    return {"server_group_id": of.uuid, **fields(of, "name project_id user_id"), "policies": [of.policy],
            "members": list(of.members)}


def volume_usage(counted: VolumeCounters, of: Instance, now: datetime.datetime) -> dict[str, Any]:
    return {"tenant_id": of.project_id, **fields(of, "user_id availability_zone"), "instance_id": of.uuid,
            "last_refreshed": _time(now), **fields(counted, "volume_id reads read_bytes writes write_bytes")}


def metrics(of: ComputeNode, measured: Sequence[Metric]) -> dict[str, Any]:
    """Return the payload of the metrics of a node. Percentages are fractions of 1 in this format."""
    return {"host": of.host, "host_ip": of.host_ip, "nodename": of.hypervisor_hostname, "metrics": [
        {"name": metric.name, "value": metric.value / 100 if metric.name.endswith(PERCENT) else metric.value,
         "source": metric.source,
         "timestamp": metric.timestamp.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")}
        for metric in measured]}
