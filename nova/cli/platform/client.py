"""A client of novad for commands: prints progress, and turns gRPC errors into messages with an exit code."""

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc

from nova.cli.errors import CommandError, LoginFailed, NotFound, UsageError
from nova.novad.client import Client, Unreachable, was_lost

_LOGIN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_MOST = (1 << 31) - 1  # the largest int32, the type of numbers in messages


def number(text: str) -> int:
    """Parse an id or a number of lines. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= _MOST):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {_MOST}")
    return int(text)


class Novad:
    """The daemon that the command line selects (--addr, --secret). Its methods raise CommandError and subclasses."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    @functools.cached_property
    def client(self) -> Client:
        try:
            return Client(self._options.addr, self._options.secret)
        except Unreachable as error:
            raise UsageError(str(error)) from None

    def ask(self, method: Any, request: Any) -> Any:
        with self._errors_translated():
            return self.client.ask(method, request)

    def stream(self, method: Any, request: Any) -> Iterator[Any]:
        with self._errors_translated():
            yield from self.client.follow(method, request)

    def follow(self, method: Any, request: Any) -> None:
        """Send a request; print each event of its progress with the seconds since the request was sent."""
        started = time.monotonic()
        for event in self.stream(method, request):
            name = f"{event.component}: " if event.component else ""
            print(f"[{time.monotonic() - started:6.1f}] {name}{event.message}")
            sys.stdout.flush()

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code == grpc.StatusCode.NOT_FOUND:
                raise NotFound(details) from None
            if was_lost(error):
                raise LoginFailed(f"{details} ({self.client.address}; is novad serve running there?)") from None
            if code in _LOGIN:
                raise LoginFailed(f"{self.client.address}: {details}") from None
            if code == grpc.StatusCode.INVALID_ARGUMENT:
                raise UsageError(details) from None
            raise CommandError(details) from None


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def size(count: int) -> str:
    """Format a number of bytes with a binary unit, for example "12 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
