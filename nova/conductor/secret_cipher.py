"""Encryption of secrets in the database with a key that only conductors have.

The secrets are passwords while a server is built, and keys of encrypted volumes while they are attached. The key file
has one key per line: the first key encrypts, every key decrypts. To replace a key, add a new key at the end of the file
of every conductor, then move it to the first line everywhere. Remove the old key when all builds that started before
the change have ended and ``nova-manage db renew_secrets`` changes nothing more. A missing file is created, which
suffices while one machine runs conductors; several machines need copies of the same file."""

from __future__ import annotations

import base64
import logging
import os
import stat
from typing import TYPE_CHECKING

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.common import files
from nova.db.servers import passwords
from nova.db.sql.engine import Database
from nova.objects.servers.guest import PASSWORD_MAX
from nova.objects.servers.instance import Key

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

LOG = logging.getLogger(__name__)

_CHECK_TEXT = "nova"  # text whose encrypted form in the database shows whether a key file belongs to this database
_HELP = ("Copy the key file of another conductor. If the key is lost, run 'nova-manage db forget_secrets': servers "
         "that are being built then get no password")


class SecretKeyUnusable(exception.DatabaseUnusable,
                        template="Key file {path} ([conductor]secret_key_file) cannot be used: {reason}"):
    """The file of [conductor]secret_key_file is missing, unreadable or has other keys."""


class SecretUnreadable(exception.NovaException, template=(
        "The password of the server cannot be decrypted: the key that encrypted it is missing.")): ...


class _Unusable(Exception):
    """The key file cannot be used. The message tells operators the reason."""


class SecretCipher:
    """A cipher with the keys of a file, which is read again when it changes. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._cached_keys: tuple[object, list[Fernet]] | None = None

    def encrypt(self, secret: str | None) -> str | None:
        """Return the encrypted form, which may be stored. Raises ServiceUnavailable."""
        try:
            return None if secret is None else self._encrypt(secret)
        except _Unusable as error:
            LOG.error("Cannot use key file %s, secrets are not stored or read: %s", self.path, error)
            raise exception.ServiceUnavailable("Secrets cannot be stored now.") from error

    def decrypt(self, token: str | None) -> str | None:
        """Return the plain text. Raises SecretUnreadable."""
        try:
            return None if token is None else self._decrypt(token)
        except _Unusable as error:
            LOG.error("A secret cannot be decrypted with key file %s: %s", self.path, error)
            raise SecretUnreadable() from error

    def try_decrypt(self, token: str | None) -> str | None:
        """Return the plain text, or None if no key decrypts it."""
        try:
            return self.decrypt(token)
        except SecretUnreadable:
            return None

    def reencrypt(self, token: str) -> str:
        """Return the same secret encrypted with the first key. Raises SecretUnreadable."""
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
                raise _Unusable(f"the file does not exist. {_HELP}")
            self._check(db, self._encrypt(_CHECK_TEXT))
        except _Unusable as error:
            raise SecretKeyUnusable(path=self.path, reason=str(error)) from error

    def _check(self, db: Database, encrypted: str) -> None:
        def read_or_store(connection: sa.Connection) -> str | None:
            stored = passwords.check_value(connection)
            if stored is None:
                passwords.set_check_value(connection, encrypted)
            return stored

        try:
            stored = db.write(read_or_store)
        except db_exception.DBDuplicateEntry:  # another conductor stored it at the same time
            stored = db.write(read_or_store)
        if stored is not None:
            self._decrypt(stored)
            # Encrypted with the first key from now on, so that old keys can be removed from the file.
            db.write(lambda connection: passwords.set_check_value(connection, encrypted))

    def _encrypt(self, secret: str) -> str:
        return self._keys()[0].encrypt(secret.encode()).decode()

    def _decrypt(self, token: str) -> str:
        from cryptography.fernet import InvalidToken, MultiFernet

        try:
            return MultiFernet(self._keys()).decrypt(token.encode()).decode()
        except InvalidToken as error:
            raise _Unusable(f"no key in it decrypts the secret. {_HELP}") from error

    def _keys(self) -> list[Fernet]:
        """Return all keys; the first key encrypts."""
        try:
            state = self._state()
        except FileNotFoundError:
            if self._cached_keys is not None:  # the key of a newly created file could not decrypt the existing secrets
                return self._cached_keys[1]
            self._create_file()
            state = self._state()
        if self._cached_keys is None or self._cached_keys[0] != state:
            self._cached_keys = state, self._load()
        return self._cached_keys[1]

    def _state(self) -> object:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _Unusable(error.strerror) from error
        return status.st_ino, status.st_mtime_ns, status.st_size

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
            raise _Unusable("a line is not a key (url-safe base64 of 32 bytes)") from error
        if not keys:
            raise _Unusable("the file contains no key")
        if mode & 0o077:
            LOG.warning("Key file %s has mode %04o: users other than its owner have access to it", self.path, mode)
        return keys

    def _create_file(self) -> None:
        """Create the key file atomically. If several processes create it at the same time, the first file stays."""
        from cryptography.fernet import Fernet

        folder = os.path.dirname(self.path) or "."
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if files.create(self.path, Fernet.generate_key() + b"\n"):
                LOG.info("Created key file %s; copy it to all other conductors", self.path)
        except OSError as error:
            raise _Unusable(f"the file cannot be created: {error.strerror}") from error


def encrypt_for_key_owner(key: Key | None, password: str) -> str:
    """Return ``password`` encrypted for the owner of an RSA key pair (PKCS #1 v1.5, base64). Returns "" if the key is
    not an RSA key, or if the result exceeds PASSWORD_MAX characters."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if key is None or not key.public_key.startswith("ssh-rsa "):
        return ""
    try:
        public = load_ssh_public_key(key.public_key.encode())
        assert isinstance(public, rsa.RSAPublicKey)
        encrypted = base64.b64encode(public.encrypt(password.encode(), padding.PKCS1v15())).decode()
    except (ValueError, UnsupportedAlgorithm) as error:
        LOG.info("Cannot encrypt a server's password with the key pair of its owner, not storing it: %s", error)
        return ""
    return encrypted if len(encrypted) <= PASSWORD_MAX else ""
