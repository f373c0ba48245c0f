"""Secrets of a platform: generated once, stored in files that only root can read, optionally encrypted.

Values are masked in the output of components, even where the output splits a secret: a line of a log ends after 8 KiB,
lines of both output streams alternate, and an excerpt may begin or end within a secret. Text is therefore searched
across line ends, per stream and as a whole, and a part of a secret at the beginning or end of the text is masked, too.
A secret is found in plain form, percent-encoded, as a JSON string, and in Base64. If a text ends with the first one to
three bytes of a secret, these bytes are not masked.
"""

import base64
import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets as random
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

from nova.common import files
from nova.common.errors import Invalid, NotKnown
from nova.novad.platform import Secret

MASK = "********"
_PIECE = 4  # Minimum length in bytes of a part of a secret that is masked at the beginning or end of a text.
_LEAST = 8  # Minimum length in bytes of a form or line of a secret that is masked on its own.
_WHOLE = -1  # Number of the stream that combines the lines of all streams.
_SEALED = b"novad-1:"
_NONCE = 12
_PAST = 4  # Number of previous values of a secret that are still masked.


class Masker:
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
        """Return the positions of secrets in a text, and of parts at its end and (if ``beginning``) its beginning."""
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
        """Return the texts of lines with secrets masked. Each line is given with the number of its output stream."""
        marks = [0] * len(lines)  # For each line a number, of which a byte is 1 where the byte of the line is masked.
        streams = {stream for stream, _line in lines} if self._masker.forms else set()
        if len(all_streams := self._ends.keys() | streams) > 1 and len(self._ends) == 1:
            self._ends[_WHOLE] = next(iter(self._ends.values()))  # All earlier lines belong to one stream.
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


class Secrets:
    """Values by name, one file of mode 0600 each below ``directory`` (0700). ``passphrase``: encrypts the values at
    rest (the content of a key file); None: values are stored unencrypted. Values stored before a passphrase was set
    remain readable, and are encrypted when they are renewed. Replaced values are stored, too, since they may still be
    in logs. ``version``: a number that changes after each new value."""

    def __init__(self, directory: pathlib.Path, passphrase: bytes | None = None) -> None:
        self.directory = directory
        self.version = 0
        files.private_directory(directory, owned=True)
        # Temporary files of a novad that was killed, of this or an earlier release.
        for left in (*directory.glob(".new-*"), *directory.glob(".*.new")):
            left.unlink()
        self._key = b""
        if passphrase:
            salt = directory / ".salt"
            if not salt.exists():
                files.replace(salt, os.urandom(16), sync=True)
            self._key = hashlib.scrypt(passphrase, salt=salt.read_bytes(), n=2**14, r=8, p=1, dklen=32)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if not path.name.startswith("."))

    def make(self, wanted: Mapping[str, Secret]) -> None:
        for name, how in wanted.items():
            if not (self.directory / name).exists():
                self.renew(name, how)

    def renew(self, name: str, how: Secret, value: str = "") -> None:
        """Replace a secret by ``value`` or a random one."""
        self._remember(name)
        self._write(name, value or "".join(random.choice(how.characters) for _ in range(how.length)))

    def take(self, values: Mapping[str, str]) -> dict[str, str]:
        """Store missing secrets; return those that exist with another value."""
        for name in values.keys() - set(self.names()):
            self._write(name, values[name])
        return {name: value for name, value in sorted(values.items()) if self._read(name) != value}

    def keep(self, names: Iterable[str]) -> None:
        """Save the current values of these secrets for put_back(), and delete all values saved before."""
        self.forget()
        for name in names:
            files.replace(self.directory / f".kept-{name}", (self.directory / name).read_bytes(), sync=True)

    def forget(self) -> None:
        """Delete the values that keep() saved."""
        for path in self.directory.glob(".kept-*"):
            path.unlink(missing_ok=True)

    def put_back(self) -> None:
        """Restore the values that keep() saved. The call may be repeated."""
        for path in self.directory.glob(".kept-*"):
            name = path.name.removeprefix(".kept-")
            self._remember(name)
            files.replace(self.directory / name, path.read_bytes(), sync=True)
            self.version += 1

    def values(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values. Raises NotKnown, Invalid (encrypted, and the passphrase is missing or wrong)."""
        return {name: self._read(name) for name in names}

    def masker(self) -> Masker:
        """Return a masker for the current values of all secrets, and for previous ones, that can be read."""
        return Masker(value for name in self.names() for value in (*self._readable(name), *self._past(name)))

    def remove(self) -> None:
        self.forget()
        for path in [*(self.directory / name for name in self.names()), *self.directory.glob(".past-*")]:
            path.unlink(missing_ok=True)

    def _remember(self, name: str) -> None:
        """Store the value of a secret that is about to be replaced, for the masker."""
        if values := self._readable(name):
            past = [value for value in self._past(name) if value not in values]
            self._write(f".past-{name}", json.dumps([*values, *past][:_PAST]))

    def _past(self, name: str) -> list[str]:
        return [value for text in self._readable(f".past-{name}") for value in json.loads(text)]

    def _readable(self, name: str) -> list[str]:
        """Return the value of a secret, or nothing if it does not exist or cannot be decrypted."""
        with contextlib.suppress(Invalid, NotKnown):
            return [self._read(name)]
        return []

    def _read(self, name: str) -> str:
        try:
            content = (self.directory / name).read_bytes()
        except FileNotFoundError:
            raise NotKnown(f"Secret {name} does not exist.") from None
        if not content.startswith(_SEALED):
            return content.decode()
        if not self._key:
            raise Invalid(f"Secret {name} is encrypted: set key_file to read it.")
        from cryptography.exceptions import InvalidTag  # Imported on demand: it needs six megabytes.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            sealed = base64.b64decode(content.removeprefix(_SEALED), validate=True)
            return AESGCM(self._key).decrypt(sealed[:_NONCE], sealed[_NONCE:], name.encode()).decode()
        except (InvalidTag, ValueError):
            raise Invalid(f"Secret {name} was encrypted with another key than that of key_file.") from None

    def _write(self, name: str, value: str) -> None:
        content = value.encode()
        if self._key:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            nonce = os.urandom(_NONCE)
            content = _SEALED + base64.b64encode(nonce + AESGCM(self._key).encrypt(nonce, content, name.encode()))
        files.replace(self.directory / name, content, sync=True)
        self.version += 1
