"""Encryption of server passwords, which are stored only as long as they are needed."""

from __future__ import annotations

import pathlib
import stat

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from nova import exception
from nova.conductor.secret_cipher import SecretCipher, SecretKeyUnusable, SecretUnreadable
from nova.db import tables
from nova.db.servers import passwords
from nova.db.sql.engine import Database
from tests.unit.conductor.books import Books, server


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def key() -> str:
    return Fernet.generate_key().decode()


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "keys" / "secret.keys"


def test_secret_encrypted_with_the_key_file_is_decrypted_with_it(file: pathlib.Path) -> None:
    token = SecretCipher(str(file)).encrypt("pässword")
    assert token is not None
    assert "ssword" not in token
    assert SecretCipher(str(file)).decrypt(token) == "pässword"
    assert SecretCipher(str(file)).encrypt(None) is SecretCipher(str(file)).decrypt(None) is None


def test_secret_key_file_is_private_to_its_owner(file: pathlib.Path) -> None:
    SecretCipher(str(file)).encrypt("x")
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_secrets_stay_readable_during_key_rotation(file: pathlib.Path) -> None:
    cipher = SecretCipher(str(file))
    token = cipher.encrypt("old")
    first, second = file.read_text().strip(), key()
    file.write_text(f"# ours\n{second}\n{first}\n")
    assert cipher.decrypt(token) == "old"
    newer = cipher.encrypt("new")
    file.write_text(f"{second}\n")
    assert cipher.decrypt(newer) == "new"
    with pytest.raises(SecretUnreadable):
        cipher.decrypt(token)
    assert cipher.try_decrypt(token) is None


def test_running_conductor_survives_the_loss_of_the_key_file(file: pathlib.Path) -> None:
    cipher = SecretCipher(str(file))
    token = cipher.encrypt("x")
    file.unlink()
    assert cipher.decrypt(token) == "x"
    assert not file.exists()


@pytest.mark.parametrize(("text", "why"), [("", "contains no key"), ("abc\n", "is not a key"), ("é\n", "is not a key")])
def test_key_file_without_a_valid_key_is_reported(core: Books, file: pathlib.Path, text: str, why: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(SecretKeyUnusable, match=why):
        SecretCipher(str(file)).check(core.db)
    with pytest.raises(exception.ServiceUnavailable) as raised:
        SecretCipher(str(file)).encrypt("x")
    assert str(file) not in str(raised.value), "the error for users contains the path of the key file"


def test_conductor_with_foreign_secret_keys_does_not_start(core: Books, file: pathlib.Path,
                                                           tmp_path: pathlib.Path) -> None:
    SecretCipher(str(file)).check(core.db)
    SecretCipher(str(file)).check(core.db)
    other = tmp_path / "other.keys"
    with pytest.raises(SecretKeyUnusable, match="the file does not exist"):
        SecretCipher(str(other)).check(core.db)
    assert not other.exists()
    other.write_text(key())
    with pytest.raises(SecretKeyUnusable, match="no key in it decrypts"):
        SecretCipher(str(other)).check(core.db)
    core.db.write(passwords.forget)
    SecretCipher(str(other)).check(core.db)


def test_rotated_secret_key_is_accepted_after_a_check(core: Books, file: pathlib.Path) -> None:
    SecretCipher(str(file)).check(core.db)
    first, second = file.read_text().strip(), key()
    file.write_text(f"{second}\n{first}\n")
    SecretCipher(str(file)).check(core.db)
    file.write_text(f"{second}\n")
    SecretCipher(str(file)).check(core.db)


def test_forget_passwords_removes_every_stored_password(core: Books, file: pathlib.Path) -> None:
    uuid = server(core, encrypted_pass=SecretCipher(str(file)).encrypt("x"), admin_pass="y").uuid
    assert core.db.write(passwords.forget) == 1
    row = core.db.read(lambda connection: connection.execute(
        sa.select(tables.instances).where(tables.instances.c.uuid == uuid)).one())
    assert (row.admin_pass, row.encrypted_pass) == (None, None)


def test_sqlite_database_file_is_private_to_its_owner(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nova.sqlite"
    for _time in range(2):
        database = Database(f"sqlite:///{path}")
        database.write(lambda connection: connection.execute(sa.text("CREATE TABLE IF NOT EXISTS t (n INTEGER)")))
        assert {mode(each) for each in tmp_path.iterdir()} == {0o600}
        database.close()
        path.chmod(0o644)  # mode of files created by earlier releases
