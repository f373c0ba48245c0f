"""What is told of what hosts notice: what their guests do with volumes, what they measure, and a
hypervisor that cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova.notifications import legacy, resources, versioned
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.action import Failure
from nova.objects.instance import Instance
from nova.objects.node import ComputeNode
from nova.objects.notification import Notification
from nova.objects.volume import VolumeCounters

_COMPUTE = "nova-compute"


def volumes_used(teller: NotificationBuilder, host: str, servers: Mapping[str, Instance],
                 counters: Sequence[VolumeCounters]) -> list[Notification]:
    """Of servers that are on the host, and volumes that they have."""
    told: list[Notification] = []
    for each in counters:
        of = servers.get(each.instance_uuid)
        if of is not None and of.host == host and any(device.volume_id == each.volume_id for device in of.volumes):
            told += teller.resource("volume.usage", of.uuid, resources.volume_usage(each, of, teller.now),
                                    "volume.usage", legacy.volume_usage(each, of, teller.now),
                                    publisher(_COMPUTE, host))
    return told


def hypervisor_lost(teller: NotificationBuilder, host: str, address: str, failure: Failure) -> list[Notification]:
    """The host has lost its libvirt."""
    reason = versioned.failure(failure)
    return teller.resource(
        "libvirt.connect.error", host, versioned.wrapped("LibvirtErrorPayload", "1.0", {
            "ip": address, "reason": reason}),
        "compute.libvirt.error", {"ip": address, "method": reason["nova_object.data"]["function_name"],
                                  "reason": failure.message}, publisher(_COMPUTE, host), failed=True)


def measured(teller: NotificationBuilder, host: str, nodes: Sequence[ComputeNode]) -> list[Notification]:
    """Of each node that something was measured of."""
    return [told for node in nodes if node.metrics for told in teller.resource(
        "metrics.update", node.uuid, resources.metrics(node, node.metrics), "compute.metrics.update",
        legacy.metrics(node, node.metrics), publisher(_COMPUTE, host))]
