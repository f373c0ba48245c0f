"""The program novactl. Modules of the commands are imported when a command runs."""

import os
import pathlib
import sys
import time
from collections.abc import Sequence

from nova import __version__
from nova.cli.federation.arguments import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code: 1 after an error, or if ``status`` finds a broken component. Raises
    SystemExit(2) for bad usage."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    program = "kubectl-nova" if pathlib.Path(sys.argv[0]).name.startswith("kubectl-nova") else "novactl"
    if arguments in (["--version"], ["version"]):
        print(version_line(program))
        return 0
    options = parser(program).parse_args(arguments)
    from nova.cli.federation import commands
    from nova.common.errors import ReportedError

    try:
        return commands.run(options)
    except ReportedError as error:
        print(f"{program}: {error.message}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def version_line(program: str) -> str:
    """Return the version, the commit and the time of the build."""
    root = pathlib.Path(__file__).parents[3]
    commit, built = "unknown", ""
    if (root / ".git").exists():
        import subprocess

        command = ["git", "-C", str(root), "log", "-1", "--format=%h %cd", "--abbrev=8", "--date=format:%Y%m%d%H%M%S"]
        try:
            output = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.split()
            commit, built = output if len(output) == 2 else (commit, built)
        except (OSError, subprocess.TimeoutExpired):
            pass
    built = built or time.strftime("%Y%m%d%H%M%S", time.gmtime(os.stat(__file__).st_mtime))
    return f"{program} version v{__version__} (git: {commit}) built: {built}"


if __name__ == "__main__":
    sys.exit(main())
