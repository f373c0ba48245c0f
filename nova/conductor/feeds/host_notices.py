"""Notifications of host reports: volume usage, metrics, a lost hypervisor connection, and cached images."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from nova.conf import CONF
from nova.db.hosts import aggregates
from nova.db.hosts.precaches import HostDone
from nova.notifications import legacy, versioned
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
            messages += builder.resource("volume.usage", of.uuid, versioned.volume_usage(counter, of, builder.now),
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
        "metrics.update", node.uuid, versioned.metrics(node, node.metrics), "compute.metrics.update",
        legacy.metrics(node, node.metrics), publisher(_COMPUTE, host))]


def images_cached(connection: sa.Connection, builder: NotificationBuilder,
                  done: Sequence[HostDone]) -> list[Notification]:
    """Return the notifications for hosts that finished caching the requested images, or failed to."""
    return [message for result in done for of in (aggregates.get(connection, result.aggregate_id),)
            for message in builder.resource(
                "aggregate.cache_images.progress", of.uuid,
                versioned.aggregate_cache(of, result.host, result.cached, result.failed, result.index, result.total),
                by=publisher("nova-conductor", CONF.host))]
