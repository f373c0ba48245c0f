"""Security groups on their way to the hosts, many changes at a time: a host hears of each group once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import sqlalchemy as sa

from nova import context, exception
from nova.conductor.feeds.feed import Feed
from nova.db import security_filters, servers
from nova.db.sql.engine import Database
from nova.objects.network import RuleSet
from nova.rpcapi.compute import Compute

LOG = logging.getLogger(__name__)


class FiltersFeed(Feed):
    """Collects changes of groups (named by :mod:`nova.db.security_filters`), and tells the hosts that they concern."""

    name = "security groups"
    interval = 0.1

    def __init__(self, db: Database, compute_at: Callable[[str], Compute]) -> None:
        super().__init__()
        self._db = db
        self._compute_at = compute_at

    def tell(self, names: Collection[str]) -> None:
        told = self._db.read(lambda connection: security_filters.changed(connection, names))
        for host, filters in told.hosts.items():
            try:
                self._compute_at(host).refresh_groups(context.admin(), filters)
            except exception.NovaException as error:
                LOG.warning("Host %s was not told of %d changes of security groups: %s", host, len(filters), error)
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
        try:
            self._compute_at(host).refresh_rules(context.admin(), uuid, rules)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] New rules were not sent to %s: %s", uuid, host, error)
