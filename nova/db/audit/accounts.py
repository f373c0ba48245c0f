"""Quotas: the usage of a project (and of each user in it) is the sum of its servers."""

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from nova.db import tables
from nova.db.accounts import quotas
from nova.db.audit.base import Check, Finding, put, run
from nova.db.audit.claims import differences
from nova.db.sql import rows
from nova.objects.servers.migration import Migration

INSTANCES = tables.instances
MIGRATIONS = tables.migrations
USAGES = tables.quota_usages


class Charges(Check):
    """Check quota usage. Subjects: projects."""

    page_size = 20
    subjects = (sa.select(USAGES.c.project_id),
                sa.select(INSTANCES.c.project_id).where(INSTANCES.c.deleted == sa.false()))

    def lock(self, connection: sa.Connection, key: str) -> None:
        # Every change of quota usage locks the row of the project before that of a user.
        quotas.lock(connection, key)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        right = _charges(connection, keys)
        for row in connection.execute(sa.select(USAGES).where(USAGES.c.project_id.in_(keys))
                                      .order_by(USAGES.c.project_id, USAGES.c.user_id)):
            sums = right.pop((row.project_id, row.user_id), dict.fromkeys(quotas.COUNTED, 0))
            wrong = {name: value for name, value in sums.items() if getattr(row, name) != value}
            if wrong:
                this = sa.and_(USAGES.c.project_id == row.project_id, USAGES.c.user_id == row.user_id)
                yield Finding("quota", row.project_id, differences(row, wrong), repair=put(USAGES, this, **wrong),
                              subject=_name(row.project_id, row.user_id))
        for (project_id, user_id), sums in right.items():
            missing = sa.insert(USAGES).values(project_id=project_id, user_id=user_id, **sums)
            yield Finding("quota", project_id, f"usage {sums} is not counted", subject=_name(project_id, user_id),
                          repair=run(missing))


def _charges(connection: sa.Connection, projects: Sequence[str]) -> dict[tuple[str, str], dict[str, int]]:
    """Return (project, user) -> correct usage; user "" is the whole project. The database counts equal servers."""
    right: dict[tuple[str, str], dict[str, int]] = {}
    equal = (INSTANCES.c.project_id, INSTANCES.c.user_id, INSTANCES.c.flavor)
    for row in connection.execute(sa.select(*equal, sa.func.count().label("servers")).where(
            INSTANCES.c.project_id.in_(projects), INSTANCES.c.deleted == sa.false(),
            INSTANCES.c.soft_deleted_at.is_(None)).group_by(*equal)):
        for user_id in ("", row.user_id):
            sums = right.setdefault((row.project_id, user_id), dict.fromkeys(quotas.COUNTED, 0))
            sums["instances"] += row.servers
            sums["cores"] += row.servers * row.flavor.vcpus
            sums["ram"] += row.servers * row.flavor.memory_mb
    # A server that is being resized is charged for the larger size.
    for row in connection.execute(sa.select(MIGRATIONS, INSTANCES.c.project_id.label("owner"), INSTANCES.c.flavor,
                                            INSTANCES.c.user_id.label("by"))
                                  .join(INSTANCES, INSTANCES.c.uuid == MIGRATIONS.c.instance_uuid)
                                  .where(INSTANCES.c.project_id.in_(projects), INSTANCES.c.deleted == sa.false(),
                                         MIGRATIONS.c.open == sa.true())):
        cores, ram = rows.to_object(Migration, row).beyond(row.flavor)
        for user_id in ("", row.by):
            sums = right.setdefault((row.owner, user_id), dict.fromkeys(quotas.COUNTED, 0))
            sums["cores"] += cores
            sums["ram"] += ram
    return right


def _name(project_id: str, user_id: str) -> str:
    return f"project {project_id} user {user_id or '(all)'}"
