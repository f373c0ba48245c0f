"""The entry point of nova: options of all commands, the command, its exit code."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from nova import __version__
from nova.cli.commands import ALIASES, COMMANDS, load
from nova.cli.errors import CommandError, UsageError
from nova.cli.platform.commands import COMMANDS as PLATFORM
from nova.cli.platform.commands import load as load_platform

# What a shell shows of a program that SIGINT ended.
_INTERRUPTED = 130
_UNEXPECTED = 255
# Which extra of the package has a library.
_EXTRAS = {"cliff": "cli", "openstack": "cli", "keystoneauth1": "cli", "grpc": "novad", "google": "novad",
           "zeroconf": "novad"}
_SUMMARY = """\
exit codes: 0 done, 1 failed or refused, 2 bad usage, 3 no such thing or several of the name, 4 no login or no answer,
130 interrupted. nova help lists the commands, nova help COMMAND explains one."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nova", epilog=_SUMMARY,
        description="Servers, and what belongs to them, over the Compute API; platforms of containers, by novad.",
        allow_abbrev=False, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="this help, with all commands")
    add("-v", "--version", action="version", version=f"nova {__version__}")
    add("-D", "--debug", action="store_true", help="show requests and answers, and where an error came from")
    add("--os-compute-api-version", metavar="2.N",
        help="microversion (default: OS_COMPUTE_API_VERSION, else the newest "
                                                        "that server and client know)")
    login = parser.add_argument_group("login (default: OS_* variables and clouds.yaml, as openstacksdk reads them)")
    for name in ("cloud", "auth-type", "auth-url", "username", "user-id", "password", "token", "endpoint",
                 "project-name", "project-id", "user-domain-name", "user-domain-id", "project-domain-name",
                 "project-domain-id", "system-scope", "region-name"):
        login.add_argument(f"--os-{name}", metavar=name.rpartition("-")[2].upper())
    login.add_argument("--os-interface", "--os-endpoint-type", metavar="INTERFACE", help="public, internal or admin")
    login.add_argument("--os-endpoint-override", metavar="URL", help="of the Compute API, instead of the catalogue's")
    login.add_argument("--os-cacert", metavar="FILE")
    login.add_argument("--os-cert", metavar="FILE")
    login.add_argument("--os-key", metavar="FILE")
    login.add_argument("--insecure", action="store_true", help="do not verify the services' certificates")
    login.add_argument("--timeout", type=float, metavar="SECONDS", help="of a request")
    login.add_argument("--os-cache", action=argparse.BooleanOptionalAction,
                       help="keep the token for the next command (default: yes, unless OS_CACHE=0)")
    novad = parser.add_argument_group("novad (deploy, platform-info and the like)")
    novad.add_argument("-a", "--addr", metavar="tcp://HOST:PORT",
                       help="default: NOVA_ADDR, else tcp://127.0.0.1:18080; tls://HOST:PORT with NOVA_CACERT, "
                            "NOVA_CERT and NOVA_KEY")
    novad.add_argument("--secret", help="default: NOVA_SHARED_SECRET, else that of novad on this machine")
    add("command", nargs="?", help=argparse.SUPPRESS)
    add("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: see _SUMMARY; 255 is a bug."""
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if not options.debug:
        warnings.simplefilter("ignore")  # of libraries, to their users
        logging.getLogger("keystoneauth").setLevel(logging.CRITICAL)
        return _told(parser, options)
    handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("keystoneauth")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        return _told(parser, options)
    finally:
        logger.removeHandler(handler)


def _told(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """The exit code; why it is not 0 is on stderr."""
    try:
        return _run(parser, options)
    except CommandError as error:
        if options.debug:
            traceback.print_exc()
        print(f"nova: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _EXTRAS:
            raise
        print(f"nova: {error.name} is not installed: pip install 'nova[{_EXTRAS[name]}]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        print(f"nova: unexpected {type(error).__name__}: {error} (a bug; --debug shows where)", file=sys.stderr)
        return _UNEXPECTED


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    name, words = options.command, options.words
    if options.help or name is None or (name == "help" and not words):
        print(parser.format_help())
        _print_commands()
        return 0 if options.help or name else 2
    if name == "help":
        name, words = words[0], ["--help"]
    name = ALIASES.get(name, name)
    verb = " ".join([name, *words[:1]])
    if name in COMMANDS and name in PLATFORM:
        return _either(name, words, options)
    if verb in PLATFORM or name in PLATFORM:
        return _platform_verb(verb, words[1:], options) if verb in PLATFORM else _platform_verb(name, words, options)
    if name not in COMMANDS:
        known = [*COMMANDS, *PLATFORM]
        close = difflib.get_close_matches(name, known, n=4) + [one for one in known if one.startswith(name)]
        meant = f" Did you mean {', '.join(dict.fromkeys(close))}?" if close else ""
        raise UsageError(f"There is no command {name}.{meant} nova help lists them.")
    return _command(name, words, options)


def _command(name: str, words: Sequence[str], options: argparse.Namespace) -> int:
    from nova.cli import shell
    from nova.cli.client import Nova

    nova: Any = None if {"-h", "--help"} & set(words) else Nova(options)
    return shell.run(name, load(name), words, nova, sys.stdout)


def _either(name: str, words: Sequence[str], options: argparse.Namespace) -> int:
    """``update``: of the server that is named, of novad where none is."""
    if {"-h", "--help"} & set(words):
        with contextlib.suppress(SystemExit):  # of the parser that has told its help
            _command(name, words, options)
        return _platform_verb(name, words, options)
    of_server = any(not word.startswith("-") for word in words)
    return (_command if of_server else _platform_verb)(name, words, options)


def _platform_verb(name: str, words: Sequence[str], options: argparse.Namespace) -> int:
    from nova.cli import shell
    from nova.cli.platform.asking import Novad

    novad: Any = None if {"-h", "--help"} & set(words) else Novad(options)
    return shell.run(name, load_platform(name), words, novad, sys.stdout)


def _print_commands() -> None:
    print("commands:")
    for name in sorted(COMMANDS):
        print(f"  {name:<30} {load(name).help}")
    print("\ncommands for novad (--addr, --secret):")
    for name in sorted(PLATFORM):
        try:
            print(f"  {name:<30} {load_platform(name).help}")
        except ModuleNotFoundError:
            print(f"  {name:<30} (pip install 'nova[novad]')")
