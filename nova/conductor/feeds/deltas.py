"""Publication of fleet changes to the schedulers, only after the transaction, never inside it."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

from nova import context, exception
from nova.objects.hosts.scheduling import FleetDelta, HostState, NodeUsage, ServiceFlags
from nova.rpcapi.scheduler import Scheduler

LOG = logging.getLogger(__name__)


class FleetAnnouncer:
    """A publisher of the deltas of this process, numbered without gaps. Thread-safe. ``source_name`` must differ after
    each start of the process, or schedulers would take the new numbers for old ones. A delta that cannot be sent leaves
    a gap, after which the schedulers request the complete fleet."""

    def __init__(self, scheduler_proxy: Scheduler, source_name: str) -> None:
        self._scheduler, self.source = scheduler_proxy, source_name
        self._seq = 0
        self._lock = threading.Lock()

    def usage(self, usages: Sequence[NodeUsage]) -> None:
        """Publish the usage of nodes, after claims and releases."""
        self._send(usage=list(usages))

    def states(self, states: Sequence[HostState]) -> None:
        """Publish new nodes, and nodes with changes other than usage."""
        self._send(states=list(states))

    def services(self, changed: dict[str, ServiceFlags]) -> None:
        """Publish the flags of the compute services, by host."""
        self._send(services={host: (flags.up, flags.disabled) for host, flags in changed.items()},
                   service_generations={host: flags.generation for host, flags in changed.items()})

    def removed(self, node_uuids: Sequence[str]) -> None:
        self._send(removed=list(node_uuids))

    def reload(self) -> None:
        """Request that all schedulers read the complete fleet, because too much changed for a delta."""
        self._send(reload=True)

    def _send(self, **changes: Any) -> None:
        if not any(changes.values()):
            return
        with self._lock:  # sent under the lock: the deltas of one source must leave in the order of their numbers
            self._seq += 1
            delta = FleetDelta(source=self.source, seq=self._seq, **changes)
            try:
                self._scheduler.delta(context.admin(), delta)
            except exception.NovaException as error:
                LOG.warning("Cannot send fleet delta %d to the schedulers, which will reload the fleet: %s", self._seq,
                            error)
            except Exception:
                # The rows are correct and the schedulers recover from a gap, so the caller must not fail.
                LOG.exception("Cannot send fleet delta %d to the schedulers, which will reload the fleet", self._seq)
