"""Images that the hosts of an aggregate cache before a server is created from them."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations import schema
from nova.db.sql.types import Json, Utc, text
from nova.objects.images.image import Image

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema.table(
        "precached_images",
        sa.Column("aggregate_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("host", text(), primary_key=True),
        sa.Column("image_id", text(36), primary_key=True),
        sa.Column("image", Json(Image), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("message", text(1024), nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("ask_again_at", Utc),
        sa.Column("created_at", Utc, nullable=False),
        sa.Column("updated_at", Utc),
    )
    schema.index("ix_precached_images_state", "precached_images", "state")
    schema.index("ix_precached_images_host", "precached_images", "host", "image_id")
