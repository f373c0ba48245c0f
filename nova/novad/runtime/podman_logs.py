"""The log of a container from the podman service, as lines.

podman's own ``tail`` (4.3.1) reorders and drops parts of long lines, so that secrets in them would not be masked.
Therefore the last lines are selected here, from the whole log (novad limits it to 50 MiB).
"""

from __future__ import annotations

import collections
import time
import urllib.parse
from collections.abc import Iterator

from nova.novad.runtime.podman_stream import PodmanStream

_PAUSE = 0.05  # Seconds in which lines are collected: a busy log may have many readers, and each message has a cost.
_QUIET = 0.2  # Seconds without a line after which a followed log has been read up to its current end.
_READ_TIMEOUT = 10.0  # seconds after which lines count as new, also without a pause before them
_LONGEST = 1 << 16  # bytes of a line; longer lines are split

Line = tuple[int, bytes]  # Number of the output stream, and the line without its end.


class PodmanLines:
    """The last ``tail`` lines of a container's standard output and error, and new ones. Raises RuntimeFault."""

    def __init__(self, path: str, container: str, follow: bool, tail: int) -> None:
        query = urllib.parse.urlencode({"stdout": "true", "stderr": "true", "follow": str(follow).lower()})
        self._follow = follow
        self._tail = tail
        self._rests: dict[int, bytes] = {}  # Beginning of an incomplete line, by output stream.
        self._stream = PodmanStream(
            path, f"there is no log of container {container}", "GET",
            f"/containers/{urllib.parse.quote(container)}/logs?{query}", timeout=None if follow else 60.0).expect(200)

    def batches(self) -> Iterator[list[Line]]:
        """Yield batches of lines that arrived together, each with the number of its output stream."""
        last: collections.deque[Line] = collections.deque(maxlen=self._tail)
        until = time.monotonic() + _READ_TIMEOUT
        frames = self._stream.frames()
        try:
            for pieces in frames:
                last.extend(self._lines(pieces))
                if self._follow and (time.monotonic() > until or not self._stream.readable(_QUIET)):
                    break
            else:
                last.extend(self._end())
            if last:
                yield list(last)
            for pieces in frames:
                if lines := self._lines(pieces):
                    yield lines
                time.sleep(_PAUSE)
            if lines := self._end():
                yield lines
        finally:
            self._stream.free()

    def _lines(self, pieces: list[tuple[int, bytes]]) -> list[Line]:
        """Return the lines that these pieces complete, and store the beginning of incomplete ones."""
        lines: list[Line] = []
        for which, piece in pieces:
            *whole, rest = (self._rests.get(which, b"") + piece).split(b"\n")
            lines += [(which, line) for line in whole]
            while len(rest) > _LONGEST:
                lines.append((which, rest[:_LONGEST]))
                rest = rest[_LONGEST:]
            self._rests[which] = rest
        return lines

    def _end(self) -> list[Line]:
        """Return incomplete lines at the end of the log."""
        lines = [(which, rest) for which, rest in self._rests.items() if rest]
        self._rests.clear()
        return lines

    def close(self) -> None:
        self._stream.close()
