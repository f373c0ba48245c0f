"""Telling the schedulers what changed in the fleet: only after the transaction, never in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from nova import context, exception
from nova.objects.scheduling import FleetDelta, HostState, NodeUsage, ServiceFlags
from nova.rpcapi.scheduler import Scheduler

LOG = logging.getLogger(__name__)


class FleetAnnouncer:
    """Sends the deltas of this process, numbered without gaps. Threads may share one.

    ``source_name`` must be another one after each start of the process, or schedulers would take
    the new numbers for old ones. A delta that cannot be sent leaves a gap, which tells the
    schedulers to ask for the whole fleet.
    """

    def __init__(self, scheduler_proxy: Scheduler, source_name: str) -> None:
        self._scheduler = scheduler_proxy
        self.source = source_name
        self._seq = 0
        self._lock = threading.Lock()

    def usage(self, usages: Sequence[NodeUsage]) -> None:
        """After claims and releases."""
        if usages:
            self._send(usage=list(usages))

    def states(self, states: Sequence[HostState]) -> None:
        """New nodes, and nodes of which more than the usage changed."""
        if states:
            self._send(states=list(states))

    def services(self, changed: dict[str, ServiceFlags]) -> None:
        """What is so of the computes of these hosts."""
        if changed:
            self._send(services={host: (flags.up, flags.disabled) for host, flags in changed.items()},
                       service_generations={host: flags.generation for host, flags in changed.items()})

    def removed(self, node_uuids: Sequence[str]) -> None:
        if node_uuids:
            self._send(removed=list(node_uuids))

    def reload(self) -> None:
        """Too much changed to say it: everybody asks for the whole fleet."""
        self._send(reload=True)

    def _send(self, **changes: Any) -> None:
        # Sent under the lock: the deltas of one source must leave in the order of their numbers.
        with self._lock:
            self._seq += 1
            delta = FleetDelta(source=self.source, seq=self._seq, **changes)
            try:
                self._scheduler.delta(context.admin(), delta)
            except exception.NovaException as error:
                LOG.warning("The schedulers were not told of change %d: %s", self._seq, error)
            except Exception:
                # The rows are right and a gap heals itself; the caller's work must not fail for it.
                LOG.exception("The schedulers were not told of change %d", self._seq)
