"""Addresses of devices in guests, as their hosts report them."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column
from nova.db.sql.types import Json
from nova.objects.servers.device_address import DeviceAddress

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("instances", sa.Column("device_addresses", Json(list[DeviceAddress])))
