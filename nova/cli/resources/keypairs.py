"""Key pairs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from nova.cli.client import Nova
from nova.cli.declare import arg, doing, listing, showing
from nova.cli.errors import CommandError, UsageError
from nova.cli.find import quoted

_USER = arg("--user", metavar="USER", since=10, help="of this user, by id (administrators)")
# From here on Nova makes no keys.
_NO_KEYS = 92


@listing(_USER, arg("--marker", metavar="NAME", since=35, help="the last one of the page before"),
         arg("--limit", metavar="N", type=int, since=35, help="so many at most"))
def list_keypairs(nova: Nova, args: argparse.Namespace) -> Any:
    """List key pairs."""
    if nova.version < 35:
        found = [one["keypair"] for one in nova.get("/os-keypairs", user_id=args.user)["keypairs"]]
    else:
        found = _pages(nova, args)
    found.sort(key=lambda one: str(one["name"]))
    return ("Name", "Type", "Fingerprint"), [(one["name"], one.get("type"), one["fingerprint"]) for one in found]


def _pages(nova: Nova, args: argparse.Namespace) -> list[Any]:
    """Its lists wrap each one, so that the name is not where a marker is looked for."""
    found: list[Any] = []
    marker = args.marker
    while args.limit is None or len(found) < args.limit:
        left = None if args.limit is None else args.limit - len(found)
        answer = nova.get("/os-keypairs", user_id=args.user, limit=left, marker=marker)
        page = [one["keypair"] for one in answer["keypairs"]]
        found += page
        if not page or "keypairs_links" not in answer:
            break
        marker = page[-1]["name"]
    return found


@doing(arg("name", metavar="NAME"), _USER)
def delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a key pair."""
    nova.delete(f"/os-keypairs/{quoted(args.name)}", user_id=args.user)


@showing(arg("keypair", metavar="NAME"), _USER)
def show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a key pair."""
    found = nova.get(f"/os-keypairs/{quoted(args.keypair)}", user_id=args.user)["keypair"]
    return dict(sorted(found.items()))


@doing(arg("name", metavar="NAME"),
       arg("--pub-key", metavar="FILE",
           help="the public key; - is standard input. Before 2.92 it may be left out: Nova "
                                             "makes a pair, and the private key is printed"),
       arg("--key-type", choices=("ssh", "x509"), since=2), _USER)
def add(nova: Nova, args: argparse.Namespace) -> None:
    """Make a public key known, with which servers let you in."""
    keypair = {"name": args.name, "type": args.key_type, "user_id": args.user}
    if args.pub_key:
        keypair["public_key"] = _read(args.pub_key)
    elif nova.version >= _NO_KEYS:
        raise UsageError(f"Since 2.{_NO_KEYS} keys are made by their owners: ssh-keygen -t ed25519, then --pub-key "
                         "~/.ssh/id_ed25519.pub (or --os-compute-api-version 2.91, and Nova makes one)")
    made = nova.post("/os-keypairs", {"keypair": {name: value for name, value in keypair.items() if value is not None}})
    if "private_key" in made["keypair"]:
        print(made["keypair"]["private_key"])


def _read(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"Cannot read the public key {path}: {error}") from error
