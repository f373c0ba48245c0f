"""What servers have used."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.db import usages


class Usages(Endpoint):
    """Implements :class:`nova.rpcapi.usages.Usages`."""

    index = reads(usages.index)
