"""Detection of an isolated conductor: without its broker it receives no heartbeats, whatever the services do."""

import datetime
import logging

from nova.conf import CONF
from nova.db.sql import clock

LOG = logging.getLogger(__name__)


class IsolationGuard:
    """A guard that allows a conductor to consider hosts down only while the conductor receives heartbeats. At the start
    and after an interruption the conductor first waits service_down_time, so that every host can report."""

    def __init__(self) -> None:
        self.connected = True
        clock.start_grace_period()

    @property
    def may_judge_hosts(self) -> bool:
        return self.connected and not clock.in_grace_period()

    def check(self, latest_heartbeat: datetime.datetime | None) -> None:
        """Update the state with the time of the latest heartbeat that any service sent by message, or None."""
        if not clock.steady(CONF.service_down_time):
            return  # the clock was set, so the age of the heartbeat is unknown
        connected = latest_heartbeat is None or clock.after(-CONF.service_down_time / 2) < latest_heartbeat
        if connected != self.connected:
            LOG.warning("Heartbeats arrive again; hosts can be considered down in %d s" if connected else
                        "No heartbeat of any service arrives: check the broker. No host is considered down meanwhile "
                        "(service_down_time: %d s)", CONF.service_down_time)
        self.connected = connected
        if not connected:
            clock.start_grace_period()
