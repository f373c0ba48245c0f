"""Rate limits for the notifications and operations that hosts cause, sized for the largest hosts. Each notification is
a row until it is sent, and consumers store it; each operation is a row of its server. Without limits a host could cause
an endless number of rows at the cost of all other hosts. Each conductor counts separately, which is accurate enough."""

import logging
from collections.abc import Iterable
from typing import TypeVar

from nova.service.rates import Limiter

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_SECONDS = 60  # period in which the following limits apply; reports above a limit are ignored
# Limits per host: measurements (of thousands of nodes and volumes, each a few times); lost hypervisor connections.
_MEASURED, _LOST = 12_000, 60
_OF_GUEST = 10  # limit per guest and _SECONDS: operations that a host causes by reporting a state change


class HostRates:
    """The rate limiters of one conductor, per host."""

    def __init__(self, measured: int = _MEASURED, lost: int = _LOST, of_guest: int = _OF_GUEST) -> None:
        self._measured, self._lost = Limiter(measured, _SECONDS), Limiter(lost, _SECONDS)
        self._of_guest = Limiter(of_guest, _SECONDS)
        self._logged = Limiter(1, _SECONDS)

    def measured(self, host: str, measurements: Iterable[T]) -> list[T]:
        """Return the measurements of the host that are within its limit."""
        return [item for item in measurements if not self._measured.take(host) or self._log_refusal(host)]

    def lost(self, host: str) -> bool:
        """Return True if the report of a lost hypervisor is within the limit of the host."""
        return not self._lost.take(host) or self._log_refusal(host)

    def of_guest(self, host: str, uuid: str) -> bool:
        """Return True if an operation for the guest is within its limit. The host repeats a refused report later."""
        return not self._of_guest.take(f"{host} {uuid}") or self._log_refusal(host)

    def _log_refusal(self, host: str) -> bool:
        """Log at most once per period that reports of the host are refused. Always return False."""
        if not self._logged.take(host):
            LOG.warning("Refusing reports of host %s: they exceed its rate limit", host)
        return False
