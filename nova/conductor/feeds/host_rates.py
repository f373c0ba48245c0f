"""How much hosts have told on the bus and done for themselves: what the largest of them need, and no more.

Each message is a row until it is sent, and whoever listens keeps it; each operation is a row of its server. A host that
had something to say without end would be heard at the cost of all others. A count of each host is kept in every
conductor for itself, which is near enough.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

from nova.service.rates import Limiter

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# In so many seconds: what was measured of nodes and volumes (thousands, a few times), and that a hypervisor is lost.
_SECONDS = 60
_MEASURED, _LOST = 12_000, 60
# Operations that a host has begun for one guest since that changed by itself.
_OF_GUEST = 10


class HostRates:
    def __init__(self, measured: int = _MEASURED, lost: int = _LOST, of_guest: int = _OF_GUEST) -> None:
        self._measured, self._lost = Limiter(measured, _SECONDS), Limiter(lost, _SECONDS)
        self._of_guest = Limiter(of_guest, _SECONDS)
        self._logged = Limiter(1, _SECONDS)

    def measured(self, host: str, told: Iterable[T]) -> list[T]:
        """Of what a host tells so much as is passed on."""
        return [each for each in told if not self._measured.take(host) or self._is_left_out(host)]

    def lost(self, host: str) -> bool:
        """Whether it is passed on that a host has lost its hypervisor."""
        return not self._lost.take(host) or self._is_left_out(host)

    def of_guest(self, host: str, uuid: str) -> bool:
        """Whether something is begun for a guest. (The host looks at it again, and says so again.)"""
        return not self._of_guest.take(f"{host} {uuid}") or self._is_left_out(host)

    def _is_left_out(self, host: str) -> bool:
        """False."""
        if not self._logged.take(host):
            LOG.warning("Refused: host %s tells more than is passed on, or done", host)
        return False
