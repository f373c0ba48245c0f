"""Notifications of host reports: volume usage of guests, host metrics, and a lost hypervisor connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova.notifications import legacy, resources, versioned
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.accounts.notification import Notification
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeCounters

_COMPUTE = "nova-compute"


def volumes_used(builder: NotificationBuilder, host: str, servers: Mapping[str, Instance],
                 counters: Sequence[VolumeCounters]) -> list[Notification]:
    """Return the volume usage notifications for servers on the host and their attached volumes."""
    messages: list[Notification] = []
    for counter in counters:
        of = servers.get(counter.instance_uuid)
        if of is not None and of.host == host and any(device.volume_id == counter.volume_id for device in of.volumes):
            messages += builder.resource("volume.usage", of.uuid, resources.volume_usage(counter, of, builder.now),
                                         "volume.usage", legacy.volume_usage(counter, of, builder.now),
                                         publisher(_COMPUTE, host))
    return messages


def hypervisor_lost(builder: NotificationBuilder, host: str, address: str, failure: Failure) -> list[Notification]:
    """Return the notifications of a lost libvirt connection."""
    reason = versioned.failure(failure)
    return builder.resource(
        "libvirt.connect.error", host, versioned.wrapped("LibvirtErrorPayload", "1.0", {
            "ip": address, "reason": reason}),
        "compute.libvirt.error", {"ip": address, "method": reason["nova_object.data"]["function_name"],
                                  "reason": failure.message}, publisher(_COMPUTE, host), failed=True)


def measured(builder: NotificationBuilder, host: str, nodes: Sequence[ComputeNode]) -> list[Notification]:
    """Return the metrics notifications of the nodes that have metrics."""
    return [message for node in nodes if node.metrics for message in builder.resource(
        "metrics.update", node.uuid, resources.metrics(node, node.metrics), "compute.metrics.update",
        legacy.metrics(node, node.metrics), publisher(_COMPUTE, host))]
