"""Security groups on their way to the hosts, many changes at a time: a host hears of each group once."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from nova import context
from nova.conductor.feeds.feed import HostFeed
from nova.db import security_filters, servers
from nova.objects.network import RuleSet


class FiltersFeed(HostFeed):
    """Collects changes of groups (named by :mod:`nova.db.security_filters`), and tells the hosts that they concern."""

    name = "security groups"
    interval = 0.1

    def tell(self, names: Collection[str]) -> None:
        told = self._db.read(lambda connection: security_filters.changed(connection, names))
        for host, filters in told.hosts.items():
            with self.telling(host, f"of {len(filters)} changes of security groups") as compute:
                compute.refresh_groups(context.admin(), filters)
        for host, rules in told.former.items():
            for uuid, each in rules.items():
                self._tell(host, uuid, each)
        for name in names:
            self.rest(name, len(told.hosts) + len(told.former))

    def tell_server(self, uuid: str) -> None:
        """A server is in other groups than before (call after the commit)."""
        def look(connection: sa.Connection) -> dict[str, RuleSet]:
            hosts = servers.places(connection, [uuid]).get(uuid, set())
            return {host: security_filters.rules_for(connection, host, [uuid])[uuid] for host in hosts}

        for host, rules in sorted(self._db.read(look).items()):
            self._tell(host, uuid, rules)

    def _tell(self, host: str, uuid: str, rules: RuleSet) -> None:
        with self.telling(host, f"the new rules of server {uuid}") as compute:
            compute.refresh_rules(context.admin(), uuid, rules)
