"""Fixed IP addresses of the embedded networks, for administrators."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.db.networks import fixed_ips


class FixedIps(Endpoint):
    """Implements :class:`nova.rpcapi.networks.FixedIps`."""

    show = reads(fixed_ips.show)
    reserve = writes(fixed_ips.reserve)
