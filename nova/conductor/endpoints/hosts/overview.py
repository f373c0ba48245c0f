"""The overview of the deployment."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.db.maintenance import overview


class Overviews(Endpoint):
    """Implements :class:`nova.rpcapi.hosts.Overviews`."""

    get = reads(overview.get)
