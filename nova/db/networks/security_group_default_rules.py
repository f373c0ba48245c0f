"""The initial rules of the default security group of a project."""

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.sql import rows
from nova.objects.networks.network import DefaultRule

TABLE = tables.security_group_default_rules

# Maximum number of rules: each default group gets all of them.
_MOST = 100


def index(connection: sa.Connection) -> list[DefaultRule]:
    return rows.to_objects(DefaultRule, connection.execute(sa.select(TABLE).order_by(TABLE.c.id)))


def get(connection: sa.Connection, rule_id: int) -> DefaultRule:
    """Return a rule. Raises SecurityGroupDefaultRuleNotFound."""
    row = connection.execute(sa.select(TABLE).where(TABLE.c.id == rule_id)).first() if _fits(rule_id) else None
    if row is None:
        raise exception.SecurityGroupDefaultRuleNotFound(rule_id=rule_id)
    return rows.to_object(DefaultRule, row)


def create(connection: sa.Connection, rule: DefaultRule) -> DefaultRule:
    """Insert a checked rule. Raises SecurityGroupDefaultRuleExists, QuotaLimit."""
    quotas.serialize(connection, "security_group_default_rules")
    existing = index(connection)
    if any(msgspec.structs.replace(other, id=rule.id) == rule for other in existing):
        raise exception.SecurityGroupDefaultRuleExists()
    if len(existing) >= _MOST:
        raise exception.QuotaLimit("Quota exceeded, too many security group default rules.")
    done = connection.execute(sa.insert(TABLE).values(rows.values_of(TABLE, rule)))
    return msgspec.structs.replace(rule, id=next(iter(done.inserted_primary_key or (0,))))


def delete(connection: sa.Connection, rule_id: int) -> None:
    """Delete a rule. Raises SecurityGroupDefaultRuleNotFound."""
    if not _fits(rule_id) or not connection.execute(sa.delete(TABLE).where(TABLE.c.id == rule_id)).rowcount:
        raise exception.SecurityGroupDefaultRuleNotFound(rule_id=rule_id)


def _fits(rule_id: int) -> bool:
    return 0 < rule_id < 2**63
