"""Masking of secrets in the output of components, also if a secret is divided.

Logs are divided: a line of a log ends after 8 KiB, lines of both output streams alternate, and an excerpt often begins
or ends within a secret. Text is therefore searched across line ends, per stream and as a whole, and a part of a secret
at the beginning or end is masked, too. A secret is found in plain form, percent-encoded, as a string of JSON, and in
Base64. The first bytes of a secret, less than four, are shown if the text ends with them.
"""

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Sequence

MASK = "********"
_PIECE = 4  # bytes of a piece of a secret at the beginning or end that are masked
_LEAST = 8  # Minimum length in bytes of a form or line of a secret that is masked on its own.
_WHOLE = -1  # Number of the stream that combines the lines of all streams.


class Masker:
    """Masks the values of secrets."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value)}
        self.forms = sorted(forms, key=lambda form: (-len(form), form))

    def text(self, text: str) -> str:
        """Return a text, or a piece of one, with secrets masked, and "?" for control characters except line ends."""
        lines = text.encode(errors="surrogateescape").split(b"\n")
        masked = "\n".join(MaskedStream(self).lines([(0, line) for line in lines]))
        return masked if masked.isprintable() else "".join(
            character if character.isprintable() or character == "\n" else "?" for character in masked)

    def spans(self, text: bytes, beginning: bool) -> list[tuple[int, int]]:
        """Return the positions of secrets, with parts at the end and, if ``beginning``, at the beginning."""
        spans: list[tuple[int, int]] = []
        for form in self.forms:
            start = text.find(form)
            while start >= 0:
                spans.append((start, start + len(form)))
                start = text.find(form, start + 1)
            sizes = range(min(len(form) - 1, len(text)), _PIECE - 1, -1)
            if size := next((size for size in sizes if text.endswith(form[:size])), 0):
                spans.append((len(text) - size, len(text)))
            if beginning and (size := next((size for size in sizes if text.startswith(form[-size:])), 0)):
                spans.append((0, size))
            if beginning and _PIECE <= len(text) < len(form) and text in form:
                spans.append((0, len(text)))
        return spans


class MaskedStream:
    """Masks secrets in the lines of a log, which arrive in batches."""

    def __init__(self, masker: Masker) -> None:
        self._ends: dict[int, bytes] = {}  # The last bytes of each stream.
        self.use(masker)

    def use(self, masker: Masker) -> None:
        """Mask the secrets of ``masker`` from now on, including one that began in earlier lines."""
        self._masker = masker
        self._keep = max((len(form) for form in masker.forms), default=1) - 1

    def lines(self, lines: Sequence[tuple[int, bytes]]) -> list[str]:
        """Return lines, each of which has the number of its output stream, with their secrets masked."""
        marks = [0] * len(lines)  # Bits of each line: a byte of value 1 for each byte to mask.
        streams = {stream for stream, _line in lines} if self._masker.forms else set()
        if len(all_streams := self._ends.keys() | streams) > 1 and len(self._ends) == 1:
            self._ends[_WHOLE] = next(iter(self._ends.values()))  # Until now all lines belong to one stream.
        for stream in (*streams, *([_WHOLE] if len(all_streams) > 1 and streams else [])):
            numbers = [number for number, (origin, _line) in enumerate(lines) if stream in (origin, _WHOLE)]
            end = self._ends.get(stream)
            text = (end or b"") + b"".join(lines[number][1] for number in numbers)
            self._ends[stream] = text[max(0, len(text) - self._keep):]
            marked, at = bytearray(len(text)), len(end or b"")
            for begin, stop in self._masker.spans(text, end is None):
                marked[begin:stop] = b"\1" * (stop - begin)
            for number in numbers:
                length = len(lines[number][1])
                marks[number] |= int.from_bytes(marked[at:at + length])
                at += length
        return [_masked(line, mark.to_bytes(len(line))) for (_stream, line), mark in zip(lines, marks, strict=True)]


def _masked(line: bytes, mark: bytes) -> str:
    return "".join(MASK if part[1] else line[part.start():part.end()].decode(errors="replace")
                   for part in re.finditer(rb"(\x01+)|\x00+", mark))


def _forms(value: str) -> set[bytes]:
    """Return the forms of a secret in a text without line ends."""
    plain = value.encode(errors="surrogateescape")
    forms = {urllib.parse.quote(value, safe="", errors="surrogateescape").encode(), json.dumps(value)[1:-1].encode(),
             json.dumps(value, ensure_ascii=False)[1:-1].encode(errors="surrogateescape")}
    for skipped, shift in ((0, 0), (2, 1), (3, 2)):  # Base64 at the three positions within groups of three bytes.
        encoded = base64.b64encode(bytes(shift) + plain)[skipped:(shift + len(plain)) * 8 // 6]
        forms |= {encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))}
    lines = plain.splitlines()
    return {form for form in (*forms, *lines) if len(form) >= _LEAST} | ({b"".join(lines), b"\r".join(lines)} - {b""})
