"""Resource usage of servers."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.db.accounts import usages


class Usages(Endpoint):
    """Implements :class:`nova.rpcapi.accounts.Usages`."""

    index = reads(usages.index)
