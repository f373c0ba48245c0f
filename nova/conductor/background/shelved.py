"""Servers that have been on the shelf for so long that they give their hosts back."""

from __future__ import annotations

import datetime
import functools
import logging

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.db import servers
from nova.objects.base import utcnow
from nova.objects.instance import Instance
from nova.operations.shelve import SINCE, ShelveOffload

LOG = logging.getLogger(__name__)

# Among how many servers they are looked for at once.
_WINDOW = 1000


def offload_overdue(core: Core, engine: Engine) -> None:
    """Also those that could not give their host back when it was time."""
    if CONF.shelved_offload_time < 0:
        return
    before = utcnow() - datetime.timedelta(seconds=CONF.shelved_offload_time)
    after: int | None = 0
    while after is not None:
        found, after = core.db.read(functools.partial(servers.shelved, after=after, window=_WINDOW))
        for server in found:
            if _since(server) <= before:
                _offload(engine, server)


def _since(server: Instance) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(server.system_metadata[SINCE])
    except (KeyError, ValueError):  # a reset put it on the shelf
        return utcnow()


def _offload(engine: Engine, server: Instance) -> None:
    try:
        start(engine, context.admin(), server.uuid, ShelveOffload.name, {})
        LOG.info("[instance: %s] It has been on the shelf for %d s and gives its host back", server.uuid,
                 CONF.shelved_offload_time)
    except exception.NovaException as error:
        LOG.info("[instance: %s] It does not give its host back now: %s", server.uuid, error)
