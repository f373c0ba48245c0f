"""Tables of the text index of servers (nova.db.servers.text_index)."""

import sqlalchemy as sa
from sqlalchemy import Column

from nova.db.sql.types import LongBytes, Utc, big_id, table, text

# Blocks of the text index: servers that were indexed together. Either all of them were deleted, or none.
text_blocks = table(
    "text_blocks",
    Column("id", big_id(), primary_key=True),
    Column("deleted", sa.Boolean, nullable=False),
    # Creation times of the servers of the block.
    Column("oldest", Utc, nullable=False),
    Column("newest", Utc, nullable=False),
)

# The values of one column of the servers of a block: compressed lines, in the order of the block's servers. The name
# "" stands for ids and creation times.
block_texts = table(
    "block_texts", Column("block_id", sa.BigInteger, primary_key=True, autoincrement=False),
    Column("name", text(64), primary_key=True), Column("content", LongBytes, nullable=False))
