"""Names of floating addresses on their way to the hosts, whose guests ask for them, many changes at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from nova import context, exception
from nova.conductor.feeds.feed import Feed
from nova.db import served_names
from nova.db.sql.engine import Database
from nova.rpcapi.compute import Compute

LOG = logging.getLogger(__name__)


class NamesFeed(Feed):
    """Collects domains that changed, and tells all hosts."""

    name = "names in the DNS"
    interval = 0.2

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        super().__init__()
        self._db = db
        self._compute_at = compute_at

    def tell(self, names: Collection[str]) -> None:
        domains = sorted(names)
        for start in range(0, len(domains), served_names.MOST):
            self._tell(domains[start:start + served_names.MOST])

    def _tell(self, domains: Collection[str]) -> None:
        told = self._db.read(lambda connection: served_names.changed(connection, domains))
        for host, served in told.items():
            try:
                self._compute_at(host).refresh_names(context.admin(), served)
            except exception.NovaException as error:
                LOG.warning("Host %s was not told of the names in %s: %s", host, ", ".join(domains), error)
        for domain in domains:
            self.rest(domain, len(told))
