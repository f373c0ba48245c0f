"""Commands for key pairs."""

import argparse
import sys
from typing import Any

from nova.cli.client import Nova
from nova.cli.declare import arg, doing, listing, showing, table, without_none
from nova.cli.errors import CommandError, UsageError
from nova.cli.find import quoted

_USER = arg("--user", metavar="USER", since=10, help="id of the user (administrators)")
# The first minor microversion in which Nova does not generate keys.
_NO_KEYS = 92


@listing(_USER, arg("--marker", metavar="NAME", since=35, help="last key pair of the previous page"),
         arg("--limit", metavar="N", type=int, since=35, help="maximum number of key pairs"))
def keypair_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List key pairs."""
    if nova.version < 35:
        keypairs = [entry["keypair"] for entry in nova.get("/os-keypairs", user_id=args.user)["keypairs"]]
    else:
        keypairs = _pages(nova, args)
    keypairs.sort(key=lambda entry: str(entry["name"]))
    return table({"Name": "name", "Type": "type", "Fingerprint": "fingerprint"}, keypairs)


def _pages(nova: Nova, args: argparse.Namespace) -> list[Any]:
    """Return the key pairs of all pages. Nova.pages() cannot read these lists: each item is wrapped in "keypair"."""
    keypairs: list[Any] = []
    marker = args.marker
    while args.limit is None or len(keypairs) < args.limit:
        remaining = None if args.limit is None else args.limit - len(keypairs)
        answer = nova.get("/os-keypairs", user_id=args.user, limit=remaining, marker=marker)
        page = [entry["keypair"] for entry in answer["keypairs"]]
        keypairs += page
        if not page or "keypairs_links" not in answer:
            break
        marker = page[-1]["name"]
    return keypairs


@doing(arg("name", metavar="NAME"), _USER)
def keypair_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a key pair."""
    nova.delete(f"/os-keypairs/{quoted(args.name)}", user_id=args.user)


@showing(arg("keypair", metavar="NAME"), _USER)
def keypair_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a key pair."""
    keypair = nova.get(f"/os-keypairs/{quoted(args.keypair)}", user_id=args.user)["keypair"]
    return dict(sorted(keypair.items()))


@doing(arg("name", metavar="NAME"),
       arg("--pub-key", metavar="FILE",
           help="file with the public key; -: standard input. Optional before 2.92: without it Nova generates a key "
                "pair, and the private key is printed"),
       arg("--key-type", choices=("ssh", "x509"), since=2), _USER)
def keypair_add(nova: Nova, args: argparse.Namespace) -> None:
    """Import a public key for logins to servers."""
    keypair = {"name": args.name, "type": args.key_type, "user_id": args.user}
    if args.pub_key:
        keypair["public_key"] = _read(args.pub_key)
    elif nova.version >= _NO_KEYS:
        raise UsageError(f"Since 2.{_NO_KEYS} Nova generates no keys: run ssh-keygen -t ed25519, then use --pub-key "
                         "~/.ssh/id_ed25519.pub (or --os-compute-api-version 2.91, and Nova generates a pair)")
    made = nova.post("/os-keypairs", {"keypair": without_none(keypair)})["keypair"]
    if "private_key" in made:
        print(made["private_key"])


def _read(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"Cannot read the public key {path}: {error}") from error
