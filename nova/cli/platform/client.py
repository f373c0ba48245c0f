"""novad as commands see it: answers, progress, and what goes wrong as an exit code with words."""

from __future__ import annotations

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


class Novad:
    """One daemon, named by the options of the command line. Raises CommandError and those derived from it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    @functools.cached_property
    def client(self) -> Client:
        try:
            return Client(self._options.addr, self._options.secret)
        except Unreachable as error:
            raise UsageError(str(error)) from None

    def ask(self, method: Any, request: Any) -> Any:
        with self._told():
            return self.client.ask(method, request)

    def stream(self, method: Any, request: Any) -> Iterator[Any]:
        with self._told():
            yield from self.client.follow(method, request)

    def follow(self, method: Any, request: Any) -> None:
        """Print what happens, component by component, with the seconds since the beginning."""
        begun = time.monotonic()
        for one in self.stream(method, request):
            name = f"{one.component}: " if one.component else ""
            print(f"[{time.monotonic() - begun:6.1f}] {name}{one.message}")
            sys.stdout.flush()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
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
    """Bytes, for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
