"""Secrets that rows keep: encrypted with a key that only conductors have.

These are passwords while a server is built, and keys of encrypted volumes while a server has them. The key file has a
key per line: the first one encrypts, each of them decrypts. To renew it, add a new key at the end of the file of every
conductor, then make it the first everywhere, and take the old ones out when no build of before is under way and
``nova-manage db renew_secrets`` finds nothing more to do. A file that is not there is made, which is enough while one
machine runs conductors; on several they need the same file.
"""

from __future__ import annotations

import base64
import logging
import os
import stat
import tempfile
from typing import TYPE_CHECKING

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import passwords
from nova.db.sql.engine import Database
from nova.objects.guest import PASSWORD_MAX
from nova.objects.instance import Key

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

LOG = logging.getLogger(__name__)

_CHECK = "nova"
_HELP = ("Copy the file of another conductor; if the key is lost, run 'nova-manage db forget_secrets': servers that "
         "are being built then get no password")


class SecretKeyUnusable(exception.DatabaseUnusable):
    """The file of [conductor]secret_key_file is missing, unreadable, or has other keys; the text is for operators."""

    template = "Key file {path} ([conductor]secret_key_file) cannot be used: {reason}"


class SecretUnreadable(exception.NovaException):
    template = "The password of the server cannot be read any more: the key that it was encrypted with is not there."


class _Unusable(Exception):
    """The key file cannot be used; why is for operators."""


class Vault:
    """Encrypts and decrypts with the keys of a file, which is read again when it has changed. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._read: tuple[object, list[Fernet]] | None = None

    def encrypt(self, secret: str | None) -> str | None:
        """Return the encrypted form, which may be stored. Raises ServiceUnavailable."""
        try:
            return None if secret is None else self._encrypt(secret)
        except _Unusable as error:
            LOG.error("Key file %s cannot be used: %s", self.path, error)
            raise exception.ServiceUnavailable("Secrets cannot be stored now.") from error

    def decrypt(self, token: str | None) -> str | None:
        """Return the plain text. Raises SecretUnreadable."""
        try:
            return None if token is None else self._decrypt(token)
        except _Unusable as error:
            LOG.error("A secret cannot be read with key file %s: %s", self.path, error)
            raise SecretUnreadable() from error

    def known(self, token: str | None) -> str | None:
        """Return the plain text; None if no key decrypts it any more."""
        try:
            return self.decrypt(token)
        except SecretUnreadable:
            return None

    def renewed(self, token: str) -> str:
        """The same secret, encrypted with the first key. Raises SecretUnreadable."""
        from cryptography.fernet import InvalidToken

        try:
            self._keys()[0].decrypt(token.encode())
        except InvalidToken:
            return self.encrypt(self.decrypt(token)) or token
        except _Unusable as error:
            raise SecretUnreadable() from error
        return token

    def check(self, db: Database) -> None:
        """Check that the secrets of the database were encrypted with these keys. Raises SecretKeyUnusable."""
        try:
            if db.read(passwords.check_value) is not None and not os.path.exists(self.path):
                raise _Unusable(f"it is not there. {_HELP}")
            self._check(db, self._encrypt(_CHECK))
        except _Unusable as error:
            raise SecretKeyUnusable(path=self.path, reason=str(error)) from error

    def _check(self, db: Database, mine: str) -> None:
        def look(connection: sa.Connection) -> str | None:
            found = passwords.check_value(connection)
            if found is None:
                passwords.set_check_value(connection, mine)
            return found

        try:
            found = db.write(look)
        except db_exception.DBDuplicateEntry:  # another conductor did at the same moment
            found = db.write(look)
        if found is not None:
            self._decrypt(found)
            # What an old key encrypted is no reason to keep that.
            db.write(lambda connection: passwords.set_check_value(connection, mine))

    def _encrypt(self, secret: str) -> str:
        return self._keys()[0].encrypt(secret.encode()).decode()

    def _decrypt(self, token: str) -> str:
        from cryptography.fernet import InvalidToken, MultiFernet

        try:
            return MultiFernet(self._keys()).decrypt(token.encode()).decode()
        except InvalidToken as error:
            raise _Unusable(f"it does not have the key that this was encrypted with. {_HELP}") from error

    def _keys(self) -> list[Fernet]:
        """Return all keys, the one that encrypts first."""
        try:
            state = self._state()
        except FileNotFoundError:
            if self._read is not None:  # another one would be of no use to the others
                return self._read[1]
            self._make()
            state = self._state()
        if self._read is None or self._read[0] != state:
            self._read = state, self._load()
        return self._read[1]

    def _state(self) -> object:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _Unusable(error.strerror) from error
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load(self) -> list[Fernet]:
        from cryptography.fernet import Fernet

        try:
            with open(self.path, encoding="ascii") as file:
                lines = [line.strip() for line in file]
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            keys = [Fernet(line) for line in lines if line and not line.startswith("#")]
        except OSError as error:
            raise _Unusable(error.strerror) from error
        except ValueError as error:
            raise _Unusable("a line of it is no key (url-safe base64 of 32 bytes)") from error
        if not keys:
            raise _Unusable("it has no key")
        if mode & 0o077:
            LOG.warning("Key file %s has mode %04o: others than its owner can use it", self.path, mode)
        return keys

    def _make(self) -> None:
        """Whole or not at all: several processes may want it at once, and the first one's counts."""
        from cryptography.fernet import Fernet

        folder = os.path.dirname(self.path) or "."
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            number, made = tempfile.mkstemp(dir=folder, prefix=".secret-key-")  # mode 0600
            with os.fdopen(number, "wb") as file:
                file.write(Fernet.generate_key() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(made, self.path)
                LOG.info("Made key file %s: all conductors need the same", self.path)
            except FileExistsError:
                pass
            finally:
                os.unlink(made)
        except OSError as error:
            raise _Unusable(f"it cannot be made: {error.strerror}") from error


def sealed(key: Key | None, password: str) -> str:
    """``password`` as only the owner of an RSA key can read it (PKCS #1 v1.5, base64); "" without such a key, or if it
    does not fit into what users are shown."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if key is None or not key.public_key.startswith("ssh-rsa "):
        return ""
    try:
        public = load_ssh_public_key(key.public_key.encode())
        assert isinstance(public, rsa.RSAPublicKey)
        found = base64.b64encode(public.encrypt(password.encode(), padding.PKCS1v15())).decode()
    except (ValueError, UnsupportedAlgorithm) as error:
        LOG.info("A password is not kept for its user: %s", error)
        return ""
    return found if len(found) <= PASSWORD_MAX else ""
