"""Commands for API versions and shell completion."""

from __future__ import annotations

import argparse
from typing import Any

from nova.cli import completions
from nova.cli.client import NEWEST, Nova
from nova.cli.declare import arg, doing, listing


@listing()
def versions(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the versions of the API and the selected version."""
    import sys

    print(f"This client supports 2.1 to 2.{NEWEST} and uses 2.{nova.version}.", file=sys.stderr)
    served = nova.versions(every=True)["versions"]
    return ("Id", "Status", "Updated", "Min Version", "Version"), [
        (version["id"], version["status"], version["updated"], version["min_version"], version["version"])
        for version in served]


@doing(arg("shell", choices=("bash", "zsh", "fish"), nargs="?", default="bash"))
def completion(_nova: Nova, args: argparse.Namespace) -> None:
    """Print a script that completes commands and options in a shell.

    bash: source <(nova completion bash); zsh: source <(nova completion zsh); fish: nova completion fish | source
    """
    print(completions.script(args.shell))
