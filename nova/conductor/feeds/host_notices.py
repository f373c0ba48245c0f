"""Notifications of host reports: volume usage, metrics, a lost hypervisor connection, and cached images."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa

from nova.conf import CONF
from nova.db.hosts import aggregates
from nova.db.hosts.precaches import HostDone
from nova.notifications import legacy, versioned
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.accounts.keypair import Notification
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeCounters
from nova.service.rates import Limiter

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


LOG = logging.getLogger(__name__)

T = TypeVar("T")

# Limits per host and _SECONDS: measurements (thousands of nodes and volumes, a few times) and lost hypervisors.
_SECONDS = 60
_MEASURED, _LOST = 12_000, 60
_OF_GUEST = 10  # limit per guest and _SECONDS: operations that a host causes by reporting a state change


class HostRates:
    """The rate limiters of one conductor, per host."""

    def __init__(self, measured: int = _MEASURED, lost: int = _LOST, of_guest: int = _OF_GUEST) -> None:
        self._measured, self._lost = Limiter(measured, _SECONDS), Limiter(lost, _SECONDS)
        self._of_guest = Limiter(of_guest, _SECONDS)
        self._logged = Limiter(1, _SECONDS)

    def measured(self, host: str, measurements: Iterable[T]) -> list[T]:
        """Return the measurements of the host that are within its limit."""
        return [item for item in measurements if not self._measured.take(host) or self._log_refusal(host)]

    def lost(self, host: str) -> bool:
        """Return True if the report of a lost hypervisor is within the limit of the host."""
        return not self._lost.take(host) or self._log_refusal(host)

    def of_guest(self, host: str, uuid: str) -> bool:
        """Return True if an operation for the guest is within its limit. The host repeats a refused report later."""
        return not self._of_guest.take(f"{host} {uuid}") or self._log_refusal(host)

    def _log_refusal(self, host: str) -> bool:
        """Log at most once per period that reports of the host are refused. Always return False."""
        if not self._logged.take(host):
            LOG.warning("Refusing reports of host %s: they exceed its rate limit", host)
        return False
