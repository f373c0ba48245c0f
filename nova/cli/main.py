"""The entry point of nova: parses global options, runs the command and returns its exit code."""

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
from nova.cli.commands import ALIASES, COMMANDS, DESCRIPTIONS, PLATFORM, load
from nova.cli.errors import CommandError, UsageError

# The exit code that shells report for a program terminated by SIGINT.
_INTERRUPTED = 130
_UNEXPECTED = 255
# The extra of Nova's Python package that installs each library.
_EXTRAS = {"cliff": "cli", "openstack": "cli", "keystoneauth1": "cli", "grpc": "novad", "google": "novad",
           "zeroconf": "novad"}
_DEFAULT_ADDRESS = "tcp://127.0.0.1:18080"
# The loggers of requests and responses, shown by --debug.
_CALLS = ("keystoneauth", "nova.novad.client")
_EXIT_CODES = [
    ("0", "success"), ("1", "the command failed, or a service refused it"), ("2", "wrong usage"),
    ("3", "no such object, or several objects with the name"), ("4", "not logged in, or the service does not answer"),
    ("130", "interrupted"), ("255", "unexpected error (a bug); --debug prints details")]
# Options whose values may begin with a hyphen; argparse would take such a value for another option.
_SECRETS = ("--secret", "--os-password", "--os-token")
# Global options of the Compute API: flags, arguments of add_argument, description.
_COMPUTE_OPTIONS: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("--os-compute-api-version",), {"metavar": "2.N"},
     "microversion (default: the newest that server and client support) [$OS_COMPUTE_API_VERSION]"),
    *(((f"--os-{name}",), {"metavar": name.rpartition("-")[2].upper()}, f"[$OS_{name.upper().replace('-', '_')}]")
      for name in ("cloud", "auth-type", "auth-url", "username", "user-id", "password", "token", "endpoint",
                   "project-name", "project-id", "user-domain-name", "user-domain-id", "project-domain-name",
                   "project-domain-id", "system-scope", "region-name")),
    (("--os-interface", "--os-endpoint-type"), {"metavar": "INTERFACE"}, "public, internal or admin [$OS_INTERFACE]"),
    (("--os-endpoint-override",), {"metavar": "URL"}, "URL of the Compute API (default: from the service catalog)"),
    (("--os-cacert",), {"metavar": "FILE"}, "CA certificates that verify the services [$OS_CACERT]"),
    (("--os-cert",), {"metavar": "FILE"}, "client certificate [$OS_CERT]"),
    (("--os-key",), {"metavar": "FILE"}, "private key of the client certificate [$OS_KEY]"),
    (("--insecure",), {"action": "store_true"}, "do not verify the services' certificates"),
    (("--timeout",), {"type": float, "metavar": "SECONDS"}, "time to wait for each response (default: no limit)"),
    (("--os-cache",), {"action": argparse.BooleanOptionalAction},
     "cache the token for the next command (default: true) [$OS_CACHE]")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nova", usage="nova [global options] command [command options]", allow_abbrev=False, add_help=False)
    add = parser.add_argument
    add("-h", "--help", action="store_true")
    add("-v", "--version", action="version", version=f"nova {__version__}")
    add("-D", "--debug", action="store_true")
    add("-a", "--addr", metavar="tcp://HOST:PORT")
    add("--secret")
    for names, options, _description in _COMPUTE_OPTIONS:
        add(*names, **options)
    add("command", nargs="?", help=argparse.SUPPRESS)
    add("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _with_joined_secrets(words: Sequence[str]) -> list[str]:
    """Return the words with every ``--secret VALUE`` as ``--secret=VALUE``."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in _SECRETS:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (_EXIT_CODES)."""
    parser = _parser()
    options = parser.parse_args(_with_joined_secrets(sys.argv[1:] if argv is None else argv))
    if not options.debug:
        warnings.simplefilter("ignore")  # hide deprecation warnings of libraries from users
        logging.getLogger("keystoneauth").setLevel(logging.CRITICAL)
        return _exit_code(parser, options)
    handler, loggers = logging.StreamHandler(sys.stderr), [logging.getLogger(name) for name in _CALLS]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        return _exit_code(parser, options)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)


def _exit_code(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Return the exit code of the command, and print the error to stderr if the command fails."""
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
        print(f"nova: unexpected {type(error).__name__}: {error} (a bug; --debug prints details)", file=sys.stderr)
        return _UNEXPECTED


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    name, words = options.command, options.words
    if options.help or name is None or (name in ("help", "h") and not words):
        print(_help(), end="")
        return 0 if options.help or name else 2
    if name in ("help", "h"):
        name, words = words[0], ["--help"]
    name = ALIASES.get(name, name)
    verb = " ".join([name, *words[:1]])
    verb = ALIASES.get(verb, verb)
    if name in COMMANDS and name in PLATFORM:  # "update" updates a named server, or else novad
        if {"-h", "--help"} & set(words):
            with contextlib.suppress(SystemExit):  # raised by the parser after it prints its help
                _command(name, words, options)
        elif any(not word.startswith("-") for word in words):
            return _command(name, words, options)
    if verb in PLATFORM or name in PLATFORM:
        return _platform_verb(verb, words[1:], options) if verb in PLATFORM else _platform_verb(name, words, options)
    if name not in COMMANDS:
        commands = [*COMMANDS, *PLATFORM]
        close = difflib.get_close_matches(name, commands, n=4)
        close += [command for command in commands if command.startswith(name)]
        suggestion = f" Did you mean {', '.join(dict.fromkeys(close))}?" if close else ""
        raise UsageError(f"There is no command {name}.{suggestion} nova help lists the commands.")
    return _command(name, words, options)


def _command(name: str, words: Sequence[str], options: argparse.Namespace) -> int:
    from nova.cli import shell
    from nova.cli.client import Nova

    nova: Any = None if {"-h", "--help"} & set(words) else Nova(options)
    return shell.run(name, load(name), words, nova, sys.stdout)


def _platform_verb(name: str, words: Sequence[str], options: argparse.Namespace) -> int:
    from nova.cli import shell
    from nova.cli.platform.client import Novad

    novad: Any = None if {"-h", "--help"} & set(words) else Novad(options)
    return shell.run(name, load(name, PLATFORM), words, novad, sys.stdout)


def _help() -> str:
    """Return the page of ``nova help``: platform commands and options first, then those of the Compute API."""
    from nova.novad import help_page

    def platform_help(name: str) -> str:
        try:
            return load(name, PLATFORM).help
        except ModuleNotFoundError:
            return "(pip install 'nova[novad]')"

    return help_page.render(
        "nova - Axyon Systems Control Manager", "nova [global options] command [command options]", {
            "COMMANDS": [*DESCRIPTIONS.items(), help_page.HELP_COMMAND],
            "GLOBAL OPTIONS": [
                help_page.DEBUG_OPTION,
                ("--addr value, -a value", f'nova grpc server address (default: "{_DEFAULT_ADDRESS}") [$NOVA_ADDR]'),
                ("--secret value", "nova shared authentication secret [$NOVA_SHARED_SECRET]"),
                help_page.HELP_OPTION, help_page.VERSION_OPTION],
            "MORE PLATFORM COMMANDS": [(name, platform_help(name)) for name in sorted(PLATFORM)
                                       if name not in DESCRIPTIONS],
            "COMPUTE COMMANDS": [(name, load(name).help) for name in sorted(COMMANDS)],
            "COMPUTE OPTIONS": [(" ".join([", ".join(flags), *([options["metavar"]] if "metavar" in options else [])]),
                                 description) for flags, options, description in _COMPUTE_OPTIONS],
            "EXIT CODES": _EXIT_CODES}, author=help_page.AUTHOR)
