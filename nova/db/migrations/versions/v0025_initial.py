"""The tables of this release, for a new database; revision 0025 is the oldest from which a database can be upgraded."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import CreateIndex, CreateTable

from nova.db import tables
from nova.db.migrations.schema import MARIADB
from nova.objects.base import new_uuid

revision = "0025"
down_revision = None


def upgrade() -> None:
    """Create the tables of the models. Later revisions find their changes already made."""
    connection = op.get_bind()
    for table in tables.metadata.sorted_tables:
        if connection.dialect.name in ("mysql", "mariadb"):  # table.kwargs would load the dialect.
            table.kwargs.update(MARIADB)
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index, if_not_exists=True))
    deployment = tables.deployment
    if connection.execute(sa.select(deployment.c.uuid)).first() is None:
        connection.execute(sa.insert(deployment).values(id=1, uuid=new_uuid()))
