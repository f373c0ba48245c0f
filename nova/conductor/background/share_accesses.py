"""Revocation of accesses to shares that no server needs any more, after a superseded move or a failed compensation."""

import functools
import logging
from collections.abc import Sequence

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conf import CONF
from nova.db.servers import servers
from nova.db.sql import clock
from nova.db.volumes import share_accesses
from nova.service.periodic import continuing

LOG = logging.getLogger(__name__)

_PAGE = 100  # number of servers checked together


def close_deleted(core: Core) -> None:
    """Revoke the accesses of deleted servers, which a conductor of the previous release does not revoke. A failed
    revocation is retried after a lease."""
    before = clock.after(-CONF.conductor.lease)
    _settle_all(core, core.db.read(lambda connection: share_accesses.of_deleted(connection, before, _PAGE)))


def reconcile(core: Core) -> None:
    """Grant the hosts of idle servers access to the shares of these servers, and revoke it from all other hosts."""
    before, after = clock.after(-CONF.conductor.lease), ""
    while True:
        accesses = core.db.read(functools.partial(share_accesses.at_rest, before=before, after=after, limit=_PAGE))
        _settle_all(core, accesses)
        if len(accesses) < _PAGE:
            return
        after = accesses[-1]


def _settle_all(core: Core, uuids: Sequence[str]) -> None:
    for uuid in uuids:
        with continuing(LOG, "[instance: %s] Cannot revoke the accesses to shares", uuid):
            try:
                instance = core.db.read(functools.partial(servers.get, uuid=uuid, deleted=True))
            except exception.InstanceNotFound:
                LOG.warning("[instance: %s] A host still has access to a share of this purged server: revoke it in "
                            "Manila", uuid)
                continue
            if instance.deleted or instance.action_uuid is None:
                ConductorControl(core, context.admin(), instance).outside_shares.reconcile()
