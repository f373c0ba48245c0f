"""Resource usage of servers."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.db import usages


class Usages(Endpoint):
    """Implements :class:`nova.rpcapi.usages.Usages`."""

    index = reads(usages.index)
