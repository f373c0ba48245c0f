"""Reports of the bytes that guests read from and wrote to volumes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from nova import context, exception
from nova.compute.host import Machine
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeCounters
from nova.rpcapi.by_hosts import Guests

LOG = logging.getLogger(__name__)

# Number of servers per request.
_PAGE = 200


class VolumeUsage:
    """The volume usage reports of one host."""

    def __init__(self, machine: Machine, guests: Guests) -> None:
        self._machine, self._guests = machine, guests

    def report(self) -> None:
        """Report the counters of all volumes of running guests."""
        ctx, host, marker = context.admin(), self._machine.name, None
        while True:
            page = self._guests.on_host(ctx, host, _PAGE, marker)
            counters = [usage for instance in page if instance.host == host for usage in self._of(instance)]
            if counters:
                self._guests.volumes_used(ctx, host, counters)
            if len(page) < _PAGE:
                return
            marker = page[-1].uuid

    def _of(self, instance: Instance) -> Iterator[VolumeCounters]:
        if not instance.volumes or instance.power_state not in (states.RUNNING, states.POWER_PAUSED):
            return
        try:
            counted = self._machine.driver.guests.diagnostics(instance).flat
        except exception.NovaException as error:
            LOG.info("[instance: %s] Cannot read the volume counters: %s", instance.uuid, error)
            return
        for device in instance.volumes:
            name = (device.device_name or "").removeprefix("/dev/")
            if device.volume_id and f"{name}_read" in counted:
                yield VolumeCounters(
                    instance_uuid=instance.uuid, volume_id=device.volume_id, reads=counted[f"{name}_read_req"],
                    read_bytes=counted[f"{name}_read"], writes=counted[f"{name}_write_req"],
                    write_bytes=counted[f"{name}_write"])
