"""What the client says of itself: versions, and completion for shells."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import completions
from nova.cli.client import NEWEST, Nova
from nova.cli.declare import arg, doing, listing


@listing()
def versions(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the versions of the API, and that which is used."""
    import sys

    print(f"This client knows 2.1 to 2.{NEWEST}, and asks for 2.{nova.version}.", file=sys.stderr)
    found = nova.versions(every=True)["versions"]
    return ("Id", "Status", "Updated", "Min Version", "Version"), [
        (one["id"], one["status"], one["updated"], one["min_version"], one["version"]) for one in found]


@doing(arg("shell", choices=("bash", "zsh", "fish"), nargs="?", default="bash"))
def completion(_nova: Nova, args: argparse.Namespace) -> None:
    """Print a script that completes commands and options in a shell.

    bash: source <(nova completion bash); zsh: source <(nova completion zsh); fish: nova completion fish | source
    """
    print(completions.script(args.shell))
