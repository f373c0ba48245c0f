"""The commands nova-manage certificates, for the certificates that os-certificates issues ([api]legacy)."""

import argparse
import datetime
import functools
import sys
from typing import Any

from nova import exception
from nova.cmd.manage import common
from nova.conductor.core import Core
from nova.conductor.resources import certificates as issuing
from nova.db.accounts import certificates
from nova.objects.accounts.certificate import Issued

_PAGE = 500
_CRL_DAYS = 7
_MAX_CRL_DAYS = 3650


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "certificates", "Manage the certificates of a project (os-certificates).")
    listing = common.add_action(group, "list", _list, "List certificates that have not been purged.")
    listing.add_argument("--user", metavar="ID", help="only certificates of this user")
    revoke = common.add_action(group, "revoke", _revoke, "Revoke valid certificates; then publish a new CRL. "
                               "Exit code 1 if no certificate matches.")
    which = revoke.add_mutually_exclusive_group(required=True)
    which.add_argument("--serial", metavar="HEX", help="only the certificate with this serial number")
    which.add_argument("--user", metavar="ID", help="all certificates of this user")
    which.add_argument("--all", action="store_true", help="all certificates of the project")
    crl = common.add_action(group, "crl", _crl, "Print the certificate revocation list of each root (PEM).")
    crl.add_argument("--days", type=int, default=_CRL_DAYS, help="validity in days (default: %(default)s)")
    renew = common.add_action(group, "renew", _renew, "Create a new root certificate, which signs all further "
                              "certificates, and print it (PEM). Existing certificates stay valid.")
    for parser in (listing, revoke, crl, renew):
        parser.add_argument("--project", metavar="ID", required=True, help="id of the project")


def _list(arguments: argparse.Namespace) -> None:
    core = common.core()
    issued: list[Issued] = []
    while page := core.db.read(functools.partial(
            certificates.index, project_id=arguments.project, user_id=arguments.user, limit=_PAGE,
            after=issued[-1].id if issued else 0)):
        issued += page
    common.show(("Serial", "User", "Created", "Expires", "Revoked"), (
        (certificate.serial, certificate.user_id, _time(certificate.created_at), _time(certificate.not_after),
         _time(certificate.revoked_at)) for certificate in issued))


def _revoke(arguments: argparse.Namespace) -> int:
    serial = None if arguments.serial is None else _serial(arguments.serial)
    core = common.core()
    count = core.db.write(lambda connection: certificates.revoke(
        connection, arguments.project, serial, arguments.user))
    print(f"Revoked {count} certificates")
    return 0 if count else 1


def _crl(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.days <= _MAX_CRL_DAYS:
        raise exception.InvalidInput(reason=f"--days must be from 1 to {_MAX_CRL_DAYS}")
    sys.stdout.write(issuing.crls(_core_with_keys(), arguments.project, arguments.days))


def _renew(arguments: argparse.Namespace) -> None:
    sys.stdout.write(issuing.renew_root(_core_with_keys(), arguments.project).data)


def _core_with_keys() -> Core:
    """Return the core. Raises SecretKeyUnusable unless this machine has the keys of the conductors."""
    core = common.core()
    core.cipher.check(core.db)
    return core


def _serial(text: str) -> str:
    """Return a serial number as it is stored. Accepts the forms that OpenSSL prints. Raises InvalidInput."""
    try:
        number = int(text.replace(":", ""), 16)
    except ValueError:
        number = -1
    if not 0 < number < 2**160:
        raise exception.InvalidInput(reason=f"--serial {text} is not a hexadecimal serial number")
    return f"{number:040x}"


def _time(moment: datetime.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
