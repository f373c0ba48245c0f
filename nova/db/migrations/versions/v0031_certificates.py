"""Root certificates of projects, and the certificates that they signed."""

import sqlalchemy as sa

from nova.db.migrations.schema import index, table
from nova.db.sql.types import LongText, Utc, big_id, text

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    table(
        "certificate_roots",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("data", LongText(), nullable=False),
        sa.Column("encrypted_key", LongText()),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("not_after", Utc(), nullable=False),
    )
    index("ix_certificate_roots_project", "certificate_roots", "project_id", "id")
    index("ix_certificate_roots_not_after", "certificate_roots", "not_after", "id")
    table(
        "certificates",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("serial", text(40), nullable=False),
        sa.Column("root_id", sa.BigInteger(), nullable=False),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("not_after", Utc(), nullable=False),
        sa.Column("revoked_at", Utc()),
        sa.UniqueConstraint("serial", name="uq_certificates_serial"),
    )
    index("ix_certificates_project", "certificates", "project_id", "id")
    index("ix_certificates_root", "certificates", "root_id", "id")
    index("ix_certificates_not_after", "certificates", "not_after", "id")
