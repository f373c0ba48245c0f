"""Maintenance of the text index of servers, by which searches find rare names, tags and addresses."""

import functools
import time

from nova.db.servers import text_index
from nova.db.sql.engine import Database

INTERVAL = 15.0  # seconds between two runs
_LONGEST = 5.0  # maximum duration of a run in seconds; the next run continues after as many seconds


class Maintenance:
    """Maintenance by one conductor at a time: adds servers to the index, removes blocks that most servers have left."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._checked = 0

    def run(self) -> float:
        """Return the seconds until the next run."""
        began = time.monotonic()
        if self._db.read(functools.partial(text_index.complete, seconds=INTERVAL / 2)) or self._db.read(
                text_index.has_old_conductors):
            return INTERVAL
        while not self._db.write(text_index.advance):
            if time.monotonic() - began > _LONGEST:
                return _LONGEST
        self._checked = self._db.write(functools.partial(text_index.dissolve, after=self._checked))
        while self._db.write(text_index.pack):
            if time.monotonic() - began > _LONGEST:
                return _LONGEST
        return INTERVAL
