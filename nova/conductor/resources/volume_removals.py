"""Requests to hosts to remove the data of deleted volumes. Rows store the removals; messages only speed them up."""

import logging
from collections.abc import Sequence

from nova import context, exception
from nova.conductor.core import Core
from nova.conf import CONF
from nova.db.hosts import services
from nova.db.sql import clock
from nova.db.volumes import volumes
from nova.objects.volumes.volume import VolumeRemoval

LOG = logging.getLogger(__name__)

_PAGE = 1000  # removals sent in one pass


def send(core: Core, ctx: context.RequestContext, removals: Sequence[VolumeRemoval], near: str = "") -> None:
    """Send removals to the hosts that are up (call after the commit); remind() sends those of the other hosts.
    ``near``: the host that removes data of the shared pool, if an operation on it may create them ("": any host)."""
    by_host: dict[str, list[VolumeRemoval]] = {}
    for removal in removals:
        by_host.setdefault(removal.host or near, []).append(removal)
    awake = core.db.read(lambda connection: {host: services.awake(connection, host) for host in by_host})
    for host, name in awake.items():
        if name is None:
            continue
        try:
            core.compute_at(name).remove_volumes(ctx, by_host[host])
        except exception.NovaException as error:
            LOG.warning("Cannot send volume removals to host %s, will retry: %s", name, error)


def remind(core: Core) -> None:
    """Send pending removals again, since the host may have been down or the message may be lost."""
    before = clock.after(-CONF.volume.removal_interval)
    left = core.db.read(lambda connection: volumes.forgotten(connection, before, _PAGE))
    if left:
        send(core, context.admin(), left)
