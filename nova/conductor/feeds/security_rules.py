"""A publisher of security groups to hosts. A host receives each group once, however many servers use it."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from nova import context
from nova.conductor.feeds.feed import HostFeed
from nova.db.networks import security_filters
from nova.db.servers import servers
from nova.objects.networks.network import RuleSet


class FiltersFeed(HostFeed):
    """A publisher of changed groups (named by :mod:`nova.db.networks.security_filters`) to the hosts that use them."""

    name = "security groups"
    interval = 0.1

    def publish(self, names: Collection[str]) -> None:
        changes = self._db.read(lambda connection: security_filters.changed(connection, names))
        for host, filters in changes.hosts.items():
            with self.sending(host, f"{len(filters)} changes of security groups") as compute:
                compute.refresh_groups(context.admin(), filters)
        for host, rules in changes.former.items():
            for uuid, rule_set in rules.items():
                self._publish(host, uuid, rule_set)
        for name in names:
            self.rest(name, len(changes.hosts) + len(changes.former))

    def publish_server(self, uuid: str) -> None:
        """Send the rules of a server whose groups changed to its hosts. Call after the commit."""
        def read(connection: sa.Connection) -> dict[str, RuleSet]:
            hosts = servers.places(connection, [uuid]).get(uuid, set())
            return {host: security_filters.rules_for(connection, host, [uuid])[uuid] for host in hosts}

        for host, rules in sorted(self._db.read(read).items()):
            self._publish(host, uuid, rules)

    def _publish(self, host: str, uuid: str, rules: RuleSet) -> None:
        with self.sending(host, f"the new rules of server {uuid}") as compute:
            compute.refresh_rules(context.admin(), uuid, rules)
