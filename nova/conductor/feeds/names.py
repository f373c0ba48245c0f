"""A publisher of the DNS names of floating addresses to the hosts, which answer the queries of their guests."""

from __future__ import annotations

from collections.abc import Collection

from nova import context
from nova.conductor.feeds.feed import HostFeed
from nova.db.networks import served_names


class NamesFeed(HostFeed):
    """A publisher of changed domains to all hosts."""

    name = "names in the DNS"
    interval = 0.2

    def publish(self, names: Collection[str]) -> None:
        domains = sorted(names)
        for start in range(0, len(domains), served_names.MOST):
            self._publish(domains[start:start + served_names.MOST])

    def _publish(self, domains: Collection[str]) -> None:
        by_host = self._db.read(lambda connection: served_names.changed(connection, domains))
        for host, served in by_host.items():
            with self.sending(host, f"the names in {', '.join(domains)}") as compute:
                compute.refresh_names(context.admin(), served)
        for domain in domains:
            self.rest(domain, len(by_host))
