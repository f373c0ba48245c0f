"""Detection of a conductor that is isolated: silence of services then says nothing about them."""

from __future__ import annotations

import datetime
import logging

from nova.conf import CONF
from nova.db.sql import clock

LOG = logging.getLogger(__name__)


class Hearing:
    """A conductor that hears nobody is itself cut off (or the broker is down): then it calls nobody dead.

    Neither does one that has just started, or hears again: everybody gets service_down_time to be heard.
    """

    def __init__(self) -> None:
        self.hears = True
        clock.start_grace_period()

    @property
    def may_judge(self) -> bool:
        return self.hears and not clock.in_grace_period()

    def look(self, last_heard: datetime.datetime | None) -> None:
        """``last_heard``: the newest sign of life of any service that sends its by message."""
        if not clock.steady(CONF.service_down_time):
            return  # when it was, nobody knows
        hears = last_heard is None or clock.after(-CONF.service_down_time / 2) < last_heard
        if hears != self.hears:
            LOG.warning("Services are heard again" if hears else "No service is heard: is the broker down?")
        self.hears = hears
        if not hears:
            clock.start_grace_period()
