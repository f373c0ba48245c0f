"""Certificates of projects: their roots, limits, revocation, renewal, encrypted keys and purge."""

from __future__ import annotations

import datetime
import pathlib
import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from cryptography import x509
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nova import exception
from nova.conductor.endpoints.accounts import Certificates
from nova.conductor.resources import certificates as issuing
from nova.conductor.secret_cipher import SecretCipher
from nova.conf import CONF
from nova.db import audit, tables
from nova.db.accounts import certificates
from nova.db.maintenance import purge
from nova.db.sql import clock
from nova.objects.accounts.certificate import Certificate
from tests.unit.conductor.books import Books, ctx, set_columns

DAY = datetime.timedelta(days=1)
Settings = Callable[..., None]


@pytest.fixture
def issuer(core: Books, tmp_path: pathlib.Path) -> Iterator[Books]:
    """Return the core with a key file of its own."""
    core.cipher = SecretCipher(f"{tmp_path}/secret.keys")
    yield core
    del core.cipher


def _create(issuer: Books, project: str = "p1", user: str = "u1") -> Certificate:
    return Certificates(issuer).create(ctx(project, user), project, user)


def _root(issuer: Books, project: str = "p1") -> x509.Certificate:
    return _load(Certificates(issuer).root(ctx(project), project))


def _load(made: Certificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.data.encode())


def _serial(made: Certificate) -> str:
    return f"{_load(made).serial_number:040x}"


def _crls(issuer: Books, project: str = "p1") -> list[x509.CertificateRevocationList]:
    texts = issuing.crls(issuer, project, 7).split("-----BEGIN X509 CRL-----")[1:]
    return [x509.load_pem_x509_crl(f"-----BEGIN X509 CRL-----{text}".encode()) for text in texts]


def _revoke(issuer: Books, *arguments: str | None) -> int:
    return issuer.db.write(lambda connection: certificates.revoke(connection, *arguments))  # type: ignore[arg-type]


def _rows(issuer: Books, table: sa.Table) -> list[sa.Row[tuple[object, ...]]]:
    return list(issuer.db.read(lambda connection: connection.execute(sa.select(table).order_by(table.c.id)).all()))


def _expire(issuer: Books, table: sa.Table, **equal: object) -> None:
    set_columns(issuer, table, sa.and_(*(table.c[name] == value for name, value in equal.items())),
                not_after=clock.now() - 2 * DAY)


def test_first_certificate_of_a_project_creates_its_root(issuer: Books) -> None:
    with pytest.raises(exception.CertificateNotFound, match="Project p1 has no root certificate"):
        Certificates(issuer).root(ctx(), "p1")
    made, other = _create(issuer), _create(issuer, user="u2")
    root = _root(issuer)
    for one in (made, other):
        _load(one).verify_directly_issued_by(root)
    root.verify_directly_issued_by(root)
    assert len(_rows(issuer, tables.certificate_roots)) == 1
    assert Certificates(issuer).root(ctx(), "p1").private_key is None
    assert list(audit.audit(issuer.db)) == []


def test_certificate_authenticates_a_client_and_signs_no_certificate(issuer: Books) -> None:
    made = _create(issuer)
    leaf, root = _load(made), _root(issuer)
    assert [leaf.subject.get_attributes_for_oid(oid)[0].value for oid in (
        NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)] == ["u1", "p1"]
    extensions = leaf.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign, usage.crl_sign) == (True, False, False)
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["urn:nova:project:p1:user:u1"]
    of_root = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (of_root.critical, of_root.value.ca, of_root.value.path_length) == (True, True, 0)
    key = load_pem_private_key((made.private_key or "").encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == leaf.public_key()


def test_private_keys_are_not_stored_in_clear(issuer: Books) -> None:
    made = _create(issuer)
    [root] = _rows(issuer, tables.certificate_roots)
    assert "PRIVATE KEY" in (issuer.cipher.decrypt(root.encrypted_key) or "")
    stored = repr((_rows(issuer, tables.certificates), root))
    assert "PRIVATE" not in stored
    assert (made.private_key or "").splitlines()[1] not in stored


def test_projects_have_separate_roots(issuer: Books) -> None:
    mine, theirs = _create(issuer), _create(issuer, "p2")
    _load(mine).verify_directly_issued_by(_root(issuer))
    assert _root(issuer).subject != _root(issuer, "p2").subject
    with pytest.raises(ValueError, match="does not match"):
        _load(theirs).verify_directly_issued_by(_root(issuer))


def test_concurrent_first_requests_create_one_root(issuer: Books) -> None:
    made: list[Certificate] = []
    failed: list[Exception] = []
    start = threading.Barrier(4)

    def create() -> None:
        start.wait(60)
        try:
            made.append(_create(issuer))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=create) for _number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert len(_rows(issuer, tables.certificate_roots)) == 1
    for one in made:
        _load(one).verify_directly_issued_by(_root(issuer))
    assert len({_serial(one) for one in made}) == 4


def test_limit_of_valid_certificates_holds_for_concurrent_requests(issuer: Books, settings: Settings) -> None:
    settings("max_per_project", 3, "certificates")
    made: list[Certificate] = []
    refused: list[str] = []

    def create() -> None:
        try:
            made.append(_create(issuer))
        except exception.QuotaLimit as error:
            refused.append(str(error))

    threads = [threading.Thread(target=create) for _number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [text.partition(" already")[0] for text in refused] == [
        "Quota exceeded, the project has 3 valid certificates"] * 2
    _create(issuer, "p2")
    assert _revoke(issuer, "p1", _serial(made[0])) == 1
    _create(issuer)
    with pytest.raises(exception.QuotaLimit):
        _create(issuer)
    _expire(issuer, tables.certificates, serial=_serial(made[1]))
    _create(issuer)


def test_certificate_is_valid_for_the_configured_days_but_not_longer_than_its_root(
        issuer: Books, settings: Settings) -> None:
    settings("days", 5, "certificates")
    settings("root_days", 8, "certificates")
    before = clock.now()
    made = _load(_create(issuer))
    assert before + 5 * DAY - datetime.timedelta(seconds=1) <= made.not_valid_after_utc <= clock.now() + 5 * DAY
    assert made.not_valid_before_utc < before
    settings("days", 30, "certificates")
    made = _load(_create(issuer))
    assert made.not_valid_after_utc == _root(issuer).not_valid_after_utc
    assert _rows(issuer, tables.certificates)[1].not_after == made.not_valid_after_utc


def test_expired_root_is_replaced_by_the_next_request(issuer: Books) -> None:
    _create(issuer)
    first = _root(issuer)
    _expire(issuer, tables.certificate_roots, project_id="p1")
    with pytest.raises(exception.CertificateNotFound):
        Certificates(issuer).root(ctx(), "p1")
    made = _create(issuer)
    assert _root(issuer).subject != first.subject
    _load(made).verify_directly_issued_by(_root(issuer))


def test_renewed_root_signs_new_certificates_and_old_ones_stay_revocable(issuer: Books) -> None:
    old = _create(issuer)
    first = _root(issuer)
    issuing.renew_root(issuer, "p1")
    new = _create(issuer)
    second = _root(issuer)
    _load(old).verify_directly_issued_by(first)
    _load(new).verify_directly_issued_by(second)
    assert first.subject != second.subject
    assert _revoke(issuer, "p1", _serial(old)) == 1
    by_issuer = {crl.issuer: crl for crl in _crls(issuer)}
    assert by_issuer.keys() == {first.subject, second.subject}
    assert by_issuer[first.subject].is_signature_valid(first.public_key())  # type: ignore[arg-type]
    assert by_issuer[first.subject].get_revoked_certificate_by_serial_number(_load(old).serial_number) is not None
    assert list(by_issuer[second.subject]) == []


def test_revocation_by_serial_user_and_project(issuer: Books) -> None:
    made = [_create(issuer), _create(issuer), _create(issuer, user="u2"), _create(issuer, "p2")]
    assert _revoke(issuer, "p2", _serial(made[0])) == 0, "the operator named another project"
    assert _revoke(issuer, "p1", _serial(made[0])) == 1
    assert _revoke(issuer, "p1", _serial(made[0])) == 0
    assert _revoke(issuer, "p1", None, "u1") == 1
    assert _revoke(issuer, "p1") == 1
    [crl] = _crls(issuer)
    assert crl.is_signature_valid(_root(issuer).public_key())  # type: ignore[arg-type]
    assert {one.serial_number for one in crl} == {_load(one).serial_number for one in made[:3]}
    [other] = _crls(issuer, "p2")
    assert list(other) == []
    listed = issuer.db.read(lambda connection: certificates.index(connection, "p1", "u1", 10))
    assert [(one.serial, one.revoked_at is not None) for one in listed] == [
        (_serial(one), True) for one in made[:2]]
    assert issuer.db.read(lambda connection: certificates.index(connection, "p1", None, 1, listed[1].id))[
        0].serial == _serial(made[2])


def test_crl_number_grows_and_expired_certificates_leave_the_crl(issuer: Books) -> None:
    made = _create(issuer)
    _revoke(issuer, "p1")
    [first] = _crls(issuer)
    _expire(issuer, tables.certificates, serial=_serial(made))
    [second] = _crls(issuer)
    numbers = [crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number for crl in (first, second)]
    assert numbers[0] < numbers[1]
    assert list(second) == []
    with pytest.raises(exception.CertificateNotFound):
        _crls(issuer, "p2")


@pytest.mark.parametrize(("project", "user", "field"), [
    ("p1", "u" * 65, "user id"), ("p1", "ü" * 33, "user id"), ("p1", "a\nb", "user id"), ("p1", "", "user id"),
    ("p" * 65, "u1", "project id"), ("", "u1", "project id"), ("p1", "\ud800", "user id")])
def test_id_that_no_certificate_can_contain_is_invalid_input(
        issuer: Books, project: str, user: str, field: str) -> None:
    with pytest.raises(exception.InvalidInput, match=field):
        _create(issuer, project, user)
    assert _rows(issuer, tables.certificates) == _rows(issuer, tables.certificate_roots) == []


def test_special_characters_of_ids_stay_in_their_field(issuer: Books) -> None:
    leaf = _load(_create(issuer, "p/1:user:root", "ü,CN=admin+O=x"))
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "ü,CN=admin+O=x"
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "urn:nova:project:p%2F1%3Auser%3Aroot:user:%C3%BC%2CCN%3Dadmin%2BO%3Dx"]


# --- the keys of conductors ------------------------------------------------------------------
def test_root_key_is_reencrypted_with_the_first_key_of_the_file(issuer: Books) -> None:
    _create(issuer)
    _create(issuer, "p2")
    assert issuing.renew_keys(issuer.db, issuer.cipher) == 0
    path = pathlib.Path(issuer.cipher.path)
    new, old = Fernet.generate_key().decode(), path.read_text().strip()
    path.write_text(f"{new}\n{old}\n")
    assert issuing.renew_keys(issuer.db, issuer.cipher) == 2
    assert issuing.renew_keys(issuer.db, issuer.cipher) == 0
    path.write_text(f"{new}\n")
    _load(_create(issuer)).verify_directly_issued_by(_root(issuer))


def test_lost_keys_are_reported_and_a_new_root_follows_after_forgetting_them(issuer: Books) -> None:
    """Create a root, lose the key file, and delete the undecryptable key as nova-manage db forget_secrets does."""
    _create(issuer)
    first = _root(issuer)
    pathlib.Path(issuer.cipher.path).write_text(f"{Fernet.generate_key().decode()}\n")
    for call in (lambda: _create(issuer), lambda: _crls(issuer)):
        with pytest.raises(exception.ServiceUnavailable, match="cannot be decrypted"):
            call()
    assert issuing.renew_keys(issuer.db, issuer.cipher) == 0
    assert len(_rows(issuer, tables.certificates)) == 1
    assert issuer.db.write(certificates.forget_keys) == 1
    made = _create(issuer)
    assert _root(issuer).subject != first.subject
    _load(made).verify_directly_issued_by(_root(issuer))
    assert [crl.issuer for crl in _crls(issuer)] == [_root(issuer).subject]


# --- purge -----------------------------------------------------------------------------------
def test_purge_removes_expired_certificates_then_their_roots(issuer: Books) -> None:
    made = [_create(issuer), _create(issuer), _create(issuer, "p2")]
    _revoke(issuer, "p1", _serial(made[1]))
    _expire(issuer, tables.certificates, serial=_serial(made[0]))
    what = purge.What(clock.now() - DAY)
    assert purge.count(issuer.db, what).total() == 1
    removed = sum(purge.purge(issuer.db, what, sleep=lambda _seconds: None), purge.Removed())
    assert {name: number for name, number in removed.items() if number} == {"certificates": 1}
    assert [row.serial for row in _rows(issuer, tables.certificates)] == [_serial(one) for one in made[1:]]
    for table in (tables.certificates, tables.certificate_roots):
        _expire(issuer, table, project_id="p1")
    removed = sum(purge.purge(issuer.db, what, sleep=lambda _seconds: None), purge.Removed())
    assert {name: number for name, number in removed.items() if number} == {"certificates": 1, "certificate_roots": 1}
    assert [row.project_id for row in _rows(issuer, tables.certificate_roots)] == ["p2"]


def test_certificates_that_expired_recently_are_kept(issuer: Books) -> None:
    _create(issuer)
    set_columns(issuer, tables.certificates, sa.true(), not_after=clock.now() - datetime.timedelta(minutes=30))
    assert purge.count(issuer.db, purge.What(clock.now() - DAY)).total() == 0


def test_options_of_certificates_have_defaults(settings: Settings) -> None:
    assert (CONF.certificates.days, CONF.certificates.root_days, CONF.certificates.max_per_project) == (365, 3650, 100)
