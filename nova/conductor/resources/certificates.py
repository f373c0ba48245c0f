"""Certificates of projects: creation by requests of users; renewal, revocation and CRLs by operators."""

import contextlib
import datetime
import logging

import sqlalchemy as sa

from nova import exception
from nova.conductor.core import Core
from nova.conductor.secret_cipher import SecretCipher, SecretUnreadable
from nova.conf import CONF
from nova.db.accounts import certificates
from nova.db.sql import clock
from nova.db.sql.engine import Database
from nova.objects.accounts.certificate import Certificate, Issued, Root

LOG = logging.getLogger(__name__)

_AT_ONCE = 500  # number of root certificates read in one statement


def create(core: Core, project_id: str, user_id: str) -> Certificate:
    """Create a certificate of a user, and first a root certificate of the project if it has no valid one. Raises
    InvalidInput, QuotaLimit, ServiceUnavailable."""
    from nova.conductor import x509  # imports cryptography, which most deployments do not need

    def transaction(connection: sa.Connection) -> tuple[str, Certificate]:
        certificates.lock(connection, project_id)
        certificates.check_room(connection, project_id, CONF.certificates.max_per_project)
        root = certificates.current_root(connection, project_id) or _add_root(core, connection, project_id)
        now = clock.now()
        not_after = min(_days_later(now, CONF.certificates.days), root.not_after)
        serial, data, private_key = x509.new_client(root.data, _key_of(core, root), project_id, user_id, now, not_after)
        certificates.add(connection, Issued(serial=serial, root_id=root.id, project_id=project_id, user_id=user_id,
                                            created_at=now, not_after=not_after))
        return serial, Certificate(data=data, private_key=private_key)

    serial, made = core.db.write(transaction)
    LOG.info("Certificate %s was issued to user %s of project %s", serial, user_id, project_id)
    return made


def renew_root(core: Core, project_id: str) -> Root:
    """Create a new root certificate of a project, which signs its further certificates. Raises InvalidInput,
    ServiceUnavailable."""
    def transaction(connection: sa.Connection) -> Root:
        certificates.lock(connection, project_id)
        return _add_root(core, connection, project_id)

    return core.db.write(transaction)


def crls(core: Core, project_id: str, days: int) -> str:
    """Return the CRL of each valid root certificate of the project. ``days``: validity of the CRLs. Raises
    ServiceUnavailable, CertificateNotFound."""
    from nova.conductor import x509

    def lists(connection: sa.Connection) -> list[str]:
        now = clock.now()
        return [x509.new_crl(root.data, _key_of(core, root), certificates.revoked(connection, root.id), now,
                             now + datetime.timedelta(days=days))
                for root in certificates.roots(connection, project_id)]

    if not (made := core.db.read(lists)):
        raise exception.CertificateNotFound(project_id=project_id)
    return "".join(made)


def renew_keys(db: Database, cipher: SecretCipher) -> int:
    """Re-encrypt the decryptable keys of all roots with the first key of the cipher; return the number of changes."""
    count, after = 0, 0
    while page := db.read(lambda connection, after=after: certificates.encrypted_keys(  # type: ignore[misc]
            connection, after, _AT_ONCE)):
        after = page[-1][0]
        for root_id, old in page:
            with contextlib.suppress(SecretUnreadable):
                if (new := cipher.reencrypt(old)) != old:
                    db.write(lambda connection, root_id=root_id, new=new: certificates.set_encrypted_key(  # type: ignore[misc]
                        connection, root_id, new))
                    count += 1
    return count


def _add_root(core: Core, connection: sa.Connection, project_id: str) -> Root:
    from nova.conductor import x509

    now = clock.now()
    not_after = _days_later(now, CONF.certificates.root_days)
    data, key = x509.new_root(project_id, now, not_after)
    return certificates.add_root(connection, Root(
        project_id=project_id, data=data, encrypted_key=core.cipher.encrypt(key), not_after=not_after))


def _key_of(core: Core, root: Root) -> str:
    """Return the private key of a root. Raises ServiceUnavailable."""
    try:
        return core.cipher.decrypt(root.encrypted_key) or ""
    except SecretUnreadable as error:
        raise exception.ServiceUnavailable("The private key of the project's root certificate cannot be decrypted now: "
                                           "the key that encrypted it is missing.") from error


def _days_later(now: datetime.datetime, days: int) -> datetime.datetime:
    """Return the time in whole seconds, like the times in certificates."""
    return (now + datetime.timedelta(days=days)).replace(microsecond=0)
