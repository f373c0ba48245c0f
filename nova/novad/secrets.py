"""Secrets of a platform: generated once, stored in files that only root can read, optionally encrypted."""

import base64
import contextlib
import hashlib
import json
import os
import pathlib
import secrets as random
from collections.abc import Iterable, Mapping

from nova.common import files
from nova.common.errors import Invalid, NotKnown
from nova.novad.masking import Masker
from nova.novad.platform import Secret

_SEALED = b"novad-1:"
_NONCE = 12
_PAST = 4  # Number of previous values of a secret that are still masked.


class Secrets:
    """Values by name, one file of mode 0600 each below ``directory`` (0700). ``passphrase``: encrypts the values at
    rest (the content of a key file); None: values are stored unencrypted. Values stored before a passphrase was set
    remain readable, and are encrypted when they are renewed. Replaced values are stored, too, since they may still be
    in logs. ``version``: a number that changes after each new value."""

    def __init__(self, directory: pathlib.Path, passphrase: bytes | None = None) -> None:
        self.directory = directory
        self.version = 0
        files.private_directory(directory, owned=True)
        # Left by a killed novad, of this or an earlier release.
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
        """Generate missing secrets."""
        for name, how in wanted.items():
            if not (self.directory / name).exists():
                self.renew(name, how)

    def renew(self, name: str, how: Secret, value: str | None = None) -> None:
        """Replace a secret by ``value`` or a random one."""
        self._remember(name)
        self._write(name, value or "".join(random.choice(how.characters) for _ in range(how.length)))

    def take(self, values: Mapping[str, str]) -> list[str]:
        """Store missing secrets; return the names of existing secrets with another value."""
        names = self.names()
        for name, value in values.items():
            if name not in names:
                self._write(name, value)
        return sorted(name for name, value in values.items() if name in names and self._read(name) != value)

    def keep(self, names: Iterable[str]) -> None:
        """Store the current values of these secrets, and of no others, until put_back()."""
        self.forget()
        for name in names:
            files.replace(self.directory / f".kept-{name}", (self.directory / name).read_bytes(), sync=True)

    def forget(self) -> None:
        """Delete the stored previous values."""
        for path in self.directory.glob(".kept-*"):
            path.unlink(missing_ok=True)

    def put_back(self) -> None:
        """Restore the stored previous values. The call may be repeated."""
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
