"""Tests of stored secrets."""

import stat

import pytest

from nova.common.errors import Invalid, NotKnown
from nova.novad.platform import Secret
from nova.novad.secrets import Secrets

WANTED = {"db": Secret(length=20), "pin": Secret(length=8, alphabet="digits")}


def modes(directory):
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def test_secrets_are_generated_once_with_length_and_alphabet(tmp_path):
    secrets = Secrets(tmp_path / "secrets")
    secrets.make(WANTED)
    assert secrets.names() == ["db", "pin"]
    values = secrets.values(WANTED)
    assert (len(values["db"]), len(values["pin"]), values["pin"].isdigit()) == (20, 8, True)
    secrets.make(WANTED)
    assert (secrets.names(), Secrets(tmp_path / "secrets").values(WANTED)) == (["db", "pin"], values)
    assert (stat.S_IMODE((tmp_path / "secrets").stat().st_mode), modes(tmp_path / "secrets")) == (0o700, {0o600})
    with pytest.raises(NotKnown, match="Secret other does not exist"):
        secrets.values(["other"])


def test_secrets_are_encrypted_on_disk_with_a_key(tmp_path):
    secrets = Secrets(tmp_path, b"a passphrase")
    secrets.make(WANTED)
    values = secrets.values(WANTED)
    secrets.keep(WANTED)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [value for value in values.values() if value.encode() in kept]
    assert modes(tmp_path) == {0o600}
    assert Secrets(tmp_path, b"a passphrase").values(WANTED) == values
    with pytest.raises(Invalid, match="db was encrypted with another key"):
        Secrets(tmp_path, b"another").values(["db"])
    with pytest.raises(Invalid, match="db is encrypted: set key_file"):
        Secrets(tmp_path).values(["db"])
    (tmp_path / "db").write_bytes((tmp_path / "pin").read_bytes())
    with pytest.raises(Invalid, match="db was encrypted"):
        secrets.values(["db"])


def test_plaintext_secret_is_encrypted_at_renewal(tmp_path):
    Secrets(tmp_path).make(WANTED)
    secrets = Secrets(tmp_path, b"key")
    before = secrets.values(["db"])["db"]
    assert before.encode() == (tmp_path / "db").read_bytes()
    secrets.renew("db", WANTED["db"])
    after = secrets.values(["db"])["db"]
    assert after != before
    assert after.encode() not in (tmp_path / "db").read_bytes()


def test_rotation_can_be_reverted_until_old_values_are_deleted(tmp_path):
    secrets = Secrets(tmp_path)
    secrets.make(WANTED)
    before = secrets.values(WANTED)
    secrets.keep(["db"])
    secrets.renew("db", WANTED["db"])
    secrets.renew("pin", WANTED["pin"])
    again = Secrets(tmp_path)
    again.put_back()
    again.put_back()
    assert (again.values(["db"])["db"], again.names()) == (before["db"], ["db", "pin"])
    assert again.values(["pin"])["pin"] != before["pin"]
    again.renew("db", WANTED["db"])
    again.forget()
    again.put_back()
    assert again.values(["db"])["db"] != before["db"]


def test_drafts_of_a_killed_novad_are_removed(tmp_path):
    Secrets(tmp_path).make(WANTED)
    for name in (".new-1", ".db.new"):  # of this release and of an earlier one
        (tmp_path / name).write_text("a secret")
    Secrets(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db", "pin"]


def test_removed_secrets_leave_no_files(tmp_path):
    secrets = Secrets(tmp_path)
    secrets.make(WANTED)
    secrets.keep(WANTED)
    secrets.renew("db", WANTED["db"])
    secrets.remove()
    assert list(tmp_path.iterdir()) == []


def test_secret_values_are_masked_in_messages(tmp_path):
    secrets = Secrets(tmp_path)
    secrets.make(WANTED)
    value = secrets.values(["db"])["db"]
    assert secrets.masker().text(f"login {value} failed") == "login ******** failed"


@pytest.mark.parametrize("key", [None, b"a passphrase"])
def test_previous_values_of_a_secret_are_masked_up_to_a_limit(tmp_path, key):
    secrets = Secrets(tmp_path, key)
    secrets.make(WANTED)
    values = [secrets.values(["db"])["db"]]
    for _rotation in range(6):
        secrets.keep(["db"])
        secrets.renew("db", WANTED["db"])
        secrets.forget()
        values.append(secrets.values(["db"])["db"])
    masker = Secrets(tmp_path, key).masker()
    assert [masker.text(value) == "********" for value in values] == [False, False, *[True] * 5]
    assert (secrets.names(), modes(tmp_path)) == (["db", "pin"], {0o600})
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [value.encode() in content for value in values[2:]] == [key is None] * 5


def test_value_of_an_undone_rotation_is_masked(tmp_path):
    secrets = Secrets(tmp_path)
    secrets.make(WANTED)
    secrets.keep(["db"])
    before = secrets.values(["db"])["db"]
    for _repeated in range(2):
        secrets.renew("db", WANTED["db"])
        undone = secrets.values(["db"])["db"]
        secrets.put_back()
        secrets.put_back()
        assert [secrets.masker().text(value) for value in (before, undone)] == ["********"] * 2
