"""System calls that Python 3.11 lacks, and child processes tied to their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

# The kinds of namespaces, with their flags.
NAMESPACES = {"cgroup": 0x02000000, "ipc": 0x08000000, "uts": 0x04000000, "net": 0x40000000, "pid": 0x20000000,
              "mnt": 0x00020000}
_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(*kinds: str) -> None:
    """Move this process (for pid: its children) to new namespaces of these kinds. Raises OSError."""
    flags = 0
    for kind in kinds:
        flags |= NAMESPACES[kind]
    _check(_libc.unshare(flags), "unshare")


def enter(pid: int, *kinds: str) -> None:
    """Join these namespaces of a process. Raises OSError."""
    handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    for handle in handles:
        _check(_libc.setns(handle, 0), "setns")
        os.close(handle)


def spawn(body: Callable[[], NoReturn]) -> int:
    """Fork a child that runs ``body`` and is killed when this process ends. Blocks signals until :func:`attend`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    parent = os.getpid()
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() not in (parent, 0):  # the parent died (0: the child is first in a pid namespace)
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        body()
    except BaseException as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(126)


def attend(child: int, *, kill: bool = False) -> NoReturn:
    """Forward signals to the child (``kill``: as SIGKILL), and exit with its exit status."""
    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL if kill else number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    _pid, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and not kill:
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(0 if kill else os.waitstatus_to_exitcode(status))


def started(pid: int) -> str:
    """Return the start time of a process, which distinguishes reused pids; "" if the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
