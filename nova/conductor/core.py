"""What every part of a conductor process shares."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from nova import bus
from nova.db.engine import Database
from nova.rpcapi.compute import Compute
from nova.rpcapi.scheduler import Scheduler

if TYPE_CHECKING:
    import oslo_messaging as messaging

    from nova.conductor.fleet import FleetPublisher
    from nova.conductor.usage import UsageFeed


# Hosts whose proxies a conductor keeps.
_HOSTS = 1000


@dataclasses.dataclass
class Core:
    """The database, the neighbours, and the name of this process (the owner of leases)."""

    name: str
    db: Database
    transport: messaging.RPCTransport
    scheduler: Scheduler
    compute: Compute
    fleet: FleetPublisher
    usage: UsageFeed
    # Addressed proxies: making one costs as much as a message does.
    _computes: dict[str, Compute] = dataclasses.field(default_factory=dict, init=False)

    def compute_at(self, host: str) -> Compute:
        proxy = self._computes.get(host)
        if proxy is None:
            if len(self._computes) >= _HOSTS:
                self._computes.clear()
            proxy = self._computes[host] = bus.at(self.compute, host)
        return proxy
