"""Guests that are unknown to the database. They are kept by default, since a wrong, restored or empty database looks
the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from nova import exception
from nova.compute.host import Machine
from nova.conf import CONF
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)


class UnknownGuests:
    """Handling of unknown guests as configured in [compute]unknown_guests."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        # uuid -> time since when the guest is unknown
        self._since: dict[str, float] = {}
        self._logged: set[str] = set()

    def seen(self, uuids: Sequence[str]) -> None:
        """Store the unknown guests of the last comparison and apply the configured action to those that are unknown for
        long enough."""
        now = time.monotonic()
        self._since = {uuid: self._since.get(uuid, now) for uuid in uuids}
        self._logged &= self._since.keys()
        metrics.UNKNOWN_GUESTS.set(len(uuids))
        for uuid in self._since.keys() - self._logged:
            LOG.warning("[instance: %s] Guest on host %s is unknown to the database; configured action "
                        "([compute]unknown_guests): %s", uuid, self._machine.name, CONF.compute.unknown_guests)
            self._logged.add(uuid)
        if CONF.compute.unknown_guests == "keep":
            return
        old = [uuid for uuid, since in self._since.items() if now - since >= CONF.compute.unknown_guests_age]
        if len(old) > CONF.compute.unknown_guests_max:
            LOG.error("%d guests on host %s are unknown to the database, more than [compute]unknown_guests_max: "
                      "no action is taken", len(old), self._machine.name)
            return
        for uuid in old:
            self._apply(uuid)

    def _apply(self, uuid: str) -> None:
        try:
            if CONF.compute.unknown_guests == "stop":
                self._machine.driver.guests.stop(uuid)
            else:
                self._machine.driver.guests.remove_orphan(uuid)
                self._machine.network.unplug_guest(uuid)
                self._machine.shares.disconnect_guest(uuid)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Unknown guest: action %s failed: %s", uuid, CONF.compute.unknown_guests, error)
