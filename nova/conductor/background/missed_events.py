"""Comparison of the interfaces of servers with the ports of an external network service, whose events may be lost. A
difference is processed as the event that was missed."""

import functools
import logging
import random
from collections.abc import Iterator

import sqlalchemy as sa

from nova import context
from nova.conductor import service_events
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.db.hosts import services
from nova.db.servers import servers
from nova.objects.servers.instance import Instance
from nova.service.process import workers_of

LOG = logging.getLogger(__name__)

# Seconds after which the hosts are read again if there were none.
_EMPTY = 60.0
_PAGE = 500  # servers


class MissedEvents:
    """The periodic task of one conductor process. All processes together compare each host once per
    heal_instance_info_cache_interval on average; each starts at a random host."""

    def __init__(self, core: Core, engine: Engine) -> None:
        self._core, self._engine = core, engine
        self._hosts: list[str] = []
        self._pause = _EMPTY

    def run(self) -> float:
        """Compare the next host; return the seconds until the one after it."""
        if not self._hosts:
            self._hosts, processes = self._core.db.read(_hosts_and_processes)
            random.shuffle(self._hosts)
            self._pause = CONF.heal_instance_info_cache_interval * processes / max(1, len(self._hosts))
        if not self._hosts:
            return _EMPTY
        host = self._hosts.pop()
        events = self._core.allocator.missed_events(context.admin(), host, lambda: self._idle_servers(host))
        if events:
            LOG.warning("Host %s: %d events of the network service were missed: %s", host, len(events), ", ".join(
                f"{event.name} of server {event.instance_uuid}" for event in events[:10]))
            service_events.process_network_events(self._engine, events)
        return self._pause

    def _idle_servers(self, host: str) -> Iterator[Instance]:
        """Yield the servers of a host that no operation changes at present."""
        marker = None
        while True:
            page = self._core.db.read(functools.partial(servers.on_host, host=host, limit=_PAGE, marker=marker))
            yield from (server for server in page if server.host == host and server.action_uuid is None)
            if len(page) < _PAGE:
                return
            marker = page[-1].uuid


def _hosts_and_processes(connection: sa.Connection) -> tuple[list[str], int]:
    """Return the hosts, and the number of conductor processes."""
    conductors = len(services.index(connection, binary="nova-conductor"))
    hosts = [service.host for service in services.index(connection, binary="nova-compute")]
    return hosts, max(1, conductors) * workers_of(CONF.conductor.workers)
