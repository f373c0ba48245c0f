"""Definitions of all tables."""
# ruff: noqa: F403

from nova.db.sql.types import metadata as metadata
from nova.db.tables.core import *
from nova.db.tables.networks import *
