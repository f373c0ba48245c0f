"""Precaching requests to the hosts of an aggregate, a limited number at a time, to protect the image service."""

import collections
import functools
import logging

import sqlalchemy as sa

from nova import context
from nova.conductor.core import Core
from nova.conductor.feeds.host_notices import images_cached
from nova.conf import CONF
from nova.db.hosts import precaches, services
from nova.db.hosts.precaches import Busy
from nova.db.sql import clock
from nova.service.periodic import continuing

LOG = logging.getLogger(__name__)

_ASK_AGAIN = 600.0  # seconds until the request to a host that does not report is repeated
_TRIES = 6  # maximum number of requests to a host that does not report
_SOON = 1.0  # seconds between two checks while there are images to fetch


def run_periodic(core: Core) -> float | None:
    """Send requests to hosts up to the limits; return the seconds until the next pass, or None if nothing is left."""
    busy_hosts = core.db.read(precaches.busy)
    if not busy_hosts:
        return None
    up = core.db.read(functools.partial(services.flags, hosts={busy.host for busy in busy_hosts}))
    working = collections.Counter(busy.aggregate_id for busy in busy_hosts if busy.requested)
    for busy in busy_hosts:
        if busy.requested:
            continue
        with continuing(LOG, "Cannot request host %s to cache images", busy.host):
            if busy.host not in up or not up[busy.host].up:
                _give_up(core, busy, "the host is down")
            elif busy.tries >= _TRIES:
                _give_up(core, busy, "the host did not answer")
            elif working[busy.aggregate_id] < CONF.image_cache.precache_concurrency:
                working[busy.aggregate_id] += 1
                _ask(core, busy)
    return _SOON


def _ask(core: Core, busy: Busy) -> None:
    images = core.db.write(functools.partial(precaches.take, of=busy, until=clock.after(_ASK_AGAIN)))
    if not images:
        return  # nothing to send: another conductor has sent the request
    LOG.info("Requesting host %s to cache %d images", busy.host, len(images))
    core.compute_at(busy.host).cache_images(context.admin(), images)


def _give_up(core: Core, busy: Busy, reason: str) -> None:
    LOG.warning("Host %s did not cache the requested images, which are not requested again: %s", busy.host, reason)

    def write(connection: sa.Connection) -> None:
        done = precaches.give_up(connection, busy, reason)
        core.outbox.notify(connection, context.admin(), lambda builder: images_cached(connection, builder, done))

    core.db.write(write)
