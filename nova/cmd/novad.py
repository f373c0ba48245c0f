"""The entry point of novad, the daemon of a node that runs a platform's components as containers."""

import argparse
import contextlib
import ctypes
import fcntl
import logging
import os
import pathlib
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence

from nova import __version__
from nova.novad import help_page

LOG = logging.getLogger("nova.novad")
_CONF = "/etc/novad/novad.toml"
_M_ARENA_MAX = -8  # parameter of mallopt(3)
_DUMPABLE = 4  # PR_SET_DUMPABLE of prctl(2)
_TRIM = 10  # seconds between two releases of unused heap memory to the kernel


class _Parser(argparse.ArgumentParser):
    """A parser that prints ``page`` as its help."""

    page = ""

    def format_help(self) -> str:
        return self.page or super().format_help()


def main(argv: Sequence[str] | None = None) -> int:
    """Run novad. Return 0 after a signal, 1 if novad cannot start, launcher.RESTART to request a restart from the
    launcher. Raises SystemExit(2) for bad usage."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser, commands = _parsers()
    options = parser.parse_args(words)
    if options.command in (None, "help", "h"):
        topic = getattr(options, "topic", None)
        if topic and topic not in commands:
            parser.error(f"no help topic for {topic!r}: the commands are serve, config and help")
        print((commands[topic] if topic else parser).format_help(), end="")
        return 0
    if options.command == "config":
        from nova.novad.options import EXAMPLE

        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return 0
    logging.basicConfig(level=logging.DEBUG if options.debug else logging.INFO, stream=sys.stderr,
                        format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in ("podman", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from nova.novad.release import launcher

    if launcher.wanted(options.config):
        return launcher.Launcher(options.config, words).run()
    from nova.common.errors import ReportedError

    try:
        return _serve(options)
    except (ReportedError, OSError) as error:
        print(f"novad: {error}", file=sys.stderr)
        return 1


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of the commands by name and alias."""
    parser = _Parser(prog="novad", allow_abbrev=False)
    parser.page = help_page.render(
        "nova - Axyon Systems Control Manager (daemon)", "nova [global options] command [command options]", {
            "COMMANDS": [("serve", "start nova server"), ("config", ""), help_page.HELP_COMMAND],
            "GLOBAL OPTIONS": [help_page.DEBUG_OPTION, help_page.HELP_OPTION, help_page.VERSION_OPTION]},
        author=help_page.AUTHOR)
    parser.add_argument("--version", "-v", action="version", version=f"novad {__version__}")
    parser.add_argument("--debug", "-D", action="store_true")
    commands = parser.add_subparsers(dest="command", metavar="command")
    serve = commands.add_parser("serve", allow_abbrev=False)
    serve.page = help_page.render("novad serve - start nova server", "novad serve [command options]", {"OPTIONS": [
        ("--config value", f'the path to the configuration file (default: "{_CONF}")'),
        ("--pprof-addr value", "start a performance profiling server on the specified address (HOST:PORT of loopback); "
                               "clients need the token in the file profiling-token in data_dir"),
        help_page.DEBUG_OPTION, help_page.HELP_OPTION]})
    serve.add_argument("--config", metavar="FILE", default=_CONF)
    serve.add_argument("--debug", "-D", action="store_true", default=argparse.SUPPRESS)
    serve.add_argument("--pprof-addr", metavar="HOST:PORT")
    config = commands.add_parser("config", allow_abbrev=False)
    config.page = help_page.render("novad config - print an example configuration file", "novad config",
                                   {"OPTIONS": [help_page.HELP_OPTION]})
    shown = commands.add_parser("help", aliases=["h"], allow_abbrev=False)
    shown.page = help_page.render(f"novad help - {help_page.HELP_COMMAND[1]}", "novad help [command]",
                                  {"OPTIONS": [help_page.HELP_OPTION]})
    shown.add_argument("topic", nargs="?", metavar="command")
    return parser, {"serve": serve, "config": config, "help": shown, "h": shown}


def _serve(arguments: argparse.Namespace) -> int:
    _leave_out()
    from nova.novad import options as configuration
    from nova.novad import platform as platforms
    from nova.novad.daemon import Daemon
    from nova.novad.errors import RuntimeFault
    from nova.novad.nodes.discovery import Announcer
    from nova.novad.release import launcher
    from nova.novad.release.updates import Updates
    from nova.novad.runtime.podman import Podman
    from nova.novad.runtime.service import PodmanService
    from nova.novad.server import Server

    libc = _limit_arenas()
    _forbid_core_dumps(libc)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # clients must not exhaust the descriptors
    options = configuration.load(arguments.config)
    platform = platforms.load(options.platform) if options.platform else None
    ended, again = threading.Event(), threading.Event()
    local = os.environ.get(launcher.LAUNCHED, "")
    if local:
        launcher.die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_args: ended.set())
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(pathlib.Path(options.data_dir)))
        podman = None
        if not options.podman_socket:
            podman = PodmanService(pathlib.Path(options.data_dir) / "podman")
            stack.callback(podman.stop)
            podman.start()
        runtime = Podman(options.podman_socket or str(podman.socket if podman else ""), options.image_limit << 20)
        daemon = Daemon(options, platform, runtime)
        stack.callback(daemon.stop)
        if arguments.pprof_addr:
            from nova.common import profiling

            profiling.serve(arguments.pprof_addr, daemon.profiling_token())
        server = Server(daemon, Updates(options, daemon.deployer, again.set), launcher=local)
        stack.callback(server.stop)
        daemon.start()
        server.start()
        announcer = Announcer(options)
        stack.callback(announcer.stop)
        announcer.start()
        LOG.info("novad %s serves platform %s at %s", __version__, daemon.deployer.platform.name, options.listen)
        rounds = 0
        while not ended.wait(1.0) and not again.is_set():
            rounds += 1
            if rounds % _TRIM == 0:
                with contextlib.suppress(AttributeError):
                    libc.malloc_trim(0)
            if podman is not None and not podman.alive():
                LOG.warning("The podman service exited or does not respond: restarting it")
                try:
                    podman.start()
                except RuntimeFault as error:
                    LOG.error("Cannot restart the podman service, retrying: %s", error)
    LOG.info("novad stopped; containers keep running")
    return launcher.RESTART if again.is_set() and not ended.is_set() else 0


def _leave_out() -> None:
    """Prevent optional imports of podman's library that novad does not need: they take 4 of 60 MB."""
    for name in ("rich",  # draws progress bars, which need a terminal
                 "charset_normalizer"):  # guesses encodings; podman uses UTF-8 only
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    warnings.filterwarnings("ignore", "Unable to find acceptable character detection")


def _limit_arenas() -> ctypes.CDLL:
    """Limit malloc to one arena, since an arena per thread uses far more memory. Return the ctypes handle of libc."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        libc.mallopt(_M_ARENA_MAX, 1)
    return libc


def _forbid_core_dumps(libc: ctypes.CDLL) -> None:
    """Keep secrets out of core files. RLIMIT_CORE does not suffice if the kernel pipes core dumps to a program.
    Containers inherit RLIMIT_CORE. Root can still debug and profile the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if libc.prctl(_DUMPABLE, 0, 0, 0, 0):
        raise OSError("prctl(PR_SET_DUMPABLE) failed: core files of novad would contain secrets")


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    """Hold the lock of this data directory. Raises Refused."""
    from nova.common.errors import Refused
    from nova.common.files import private_directory

    private_directory(directory, owned=True)
    with open(directory / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"Another novad uses data directory {directory}.") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
