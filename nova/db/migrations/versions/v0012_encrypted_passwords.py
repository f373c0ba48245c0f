"""Encrypted passwords, deleted when no longer needed, and deletion of the user data of deleted servers."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from nova.db.migrations.schema import column, table
from nova.db.sql.types import big_id, long_text

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_PAGE = 500


def upgrade() -> None:
    column("instances", sa.Column("encrypted_pass", long_text()))
    table("key_check", sa.Column("id", big_id(), primary_key=True), sa.Column("encrypted", long_text(), nullable=False))
    forget(op.get_bind())


def forget(connection: sa.Connection) -> None:
    """Rows of before may have kept them: of builds that failed, of evacuations, of deleted servers."""
    instances = sa.table("instances", *(sa.column(name) for name in (
        "admin_pass", "vm_state", "deleted", "user_data", "personality")))
    connection.execute(sa.update(instances).where(
        instances.c.admin_pass.is_not(None), instances.c.vm_state != "building").values(admin_pass=None))
    connection.execute(sa.update(instances).where(
        instances.c.deleted == sa.true(), sa.or_(instances.c.user_data.is_not(None), instances.c.personality != "[]"))
        .values(user_data=None, personality="[]"))
    actions = sa.table("actions", sa.column("id"), sa.column("payload", sa.Text))
    last = 0
    while True:
        rows = connection.execute(
            sa.select(actions).where(actions.c.id > last, actions.c.payload.contains('"admin_pass":"', autoescape=True))
            .order_by(actions.c.id).limit(_PAGE)).all()
        for row in rows:
            connection.execute(sa.update(actions).where(actions.c.id == row.id).values(
                payload=json.dumps(_without(json.loads(row.payload)))))
        if len(rows) < _PAGE:
            return
        last = rows[-1].id


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {key: None if key == "admin_pass" else _without(item) for key, item in value.items()}
    return value
