"""Names of floating addresses on their way to the hosts, whose guests ask for them, many changes at a time."""

from __future__ import annotations

from collections.abc import Collection

from nova import context
from nova.conductor.feeds.feed import HostFeed
from nova.db import served_names


class NamesFeed(HostFeed):
    """Collects domains that changed, and tells all hosts."""

    name = "names in the DNS"
    interval = 0.2

    def tell(self, names: Collection[str]) -> None:
        domains = sorted(names)
        for start in range(0, len(domains), served_names.MOST):
            self._tell(domains[start:start + served_names.MOST])

    def _tell(self, domains: Collection[str]) -> None:
        told = self._db.read(lambda connection: served_names.changed(connection, domains))
        for host, served in told.items():
            with self.telling(host, f"of the names in {', '.join(domains)}") as compute:
                compute.refresh_names(context.admin(), served)
        for domain in domains:
            self.rest(domain, len(told))
