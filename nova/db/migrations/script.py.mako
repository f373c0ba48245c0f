"""${message}"""

import sqlalchemy as sa
from alembic import op

from nova.db.sql.types import Json, LongText, Utc, big_id, text

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
