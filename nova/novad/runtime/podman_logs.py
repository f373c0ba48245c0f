"""A log of podman's service as lines."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator

from nova.novad.runtime.podman_stream import PodmanStream

_PAUSE = 0.05  # seconds in which lines gather: readers of a busy log are many, and each message costs
_LONGEST = 1 << 16  # bytes of a line; what is longer comes in parts


class PodmanLines:
    """Lines of a container's standard output and error. Raises RuntimeFault."""

    def __init__(self, path: str, container: str, follow: bool, tail: int) -> None:
        query = urllib.parse.urlencode({"stdout": "true", "stderr": "true", "follow": str(follow).lower(),
                                        "tail": tail})
        self._follow = follow
        self._stream = PodmanStream(
            path, f"there is no log of container {container}", "GET",
            f"/containers/{urllib.parse.quote(container)}/logs?{query}", timeout=None if follow else 60.0).expect(200)

    def batches(self) -> Iterator[list[tuple[int, bytes]]]:
        """Return the lines, those together that came together, each with the number of its output stream."""
        rests: dict[int, bytes] = {}
        try:
            for found in self._stream.frames(pause=_PAUSE if self._follow else 0.0):
                lines: list[tuple[int, bytes]] = []
                for which, piece in found:
                    *whole, rest = (rests.get(which, b"") + piece).split(b"\n")
                    lines += [(which, line) for line in whole]
                    while len(rest) > _LONGEST:
                        lines.append((which, rest[:_LONGEST]))
                        rest = rest[_LONGEST:]
                    rests[which] = rest
                if lines:
                    yield lines
            if left := [(which, rest) for which, rest in rests.items() if rest]:
                yield left
        finally:
            self._stream.free()

    def close(self) -> None:
        self._stream.close()
