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

    def compute_at(self, host: str) -> Compute:
        return bus.at(self.compute, host)
