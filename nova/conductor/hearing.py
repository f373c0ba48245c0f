"""Whether the silence of services says something about them, or about us."""

from __future__ import annotations

import datetime
import logging
import time

from nova.conf import CONF
from nova.db import clock

LOG = logging.getLogger(__name__)


class Hearing:
    """A conductor that hears nobody is itself cut off (or the broker is down): then it calls nobody dead.

    Neither does one that has just started, or hears again: everybody gets service_down_time to be heard.
    """

    def __init__(self) -> None:
        self.hears = True
        self._judge_from = time.monotonic() + CONF.service_down_time

    @property
    def may_judge(self) -> bool:
        return self.hears and time.monotonic() >= self._judge_from

    def look(self, last_heard: datetime.datetime | None) -> None:
        """``last_heard``: the newest sign of life of any service that sends its by message."""
        hears = last_heard is None or clock.after(-CONF.service_down_time / 2) < last_heard
        if hears != self.hears:
            LOG.warning("Services are heard again" if hears else "No service is heard: is the broker down?")
        self.hears = hears
        if not hears:
            self._judge_from = time.monotonic() + CONF.service_down_time
