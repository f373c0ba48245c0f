"""An RPC server with one interface in its own process, which tests freeze and kill.

The server replies with its host name after the requested number of seconds, and prints each call that begins.
"""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import time
from typing import Any

from nova import bus, conf, context
from tests.integration.processes import Process, eventually
from tests.paths import ROOT

THREADS = 4


class Desk(bus.Interface):
    topic = "desk"
    namespace = "desk"

    @bus.call
    def ask(self, ctx: context.RequestContext, name: str, seconds: float = 0.0) -> str: ...

    @bus.cast
    def note(self, ctx: context.RequestContext, name: str) -> None: ...

    @bus.fanout
    def shout(self, ctx: context.RequestContext, name: str) -> None: ...


class Clerk:
    def __init__(self, host: str) -> None:
        self.host = host

    def ask(self, ctx: context.RequestContext, name: str, seconds: float) -> str:
        what, _, until = name.partition(" until ")
        if until and time.monotonic() > float(until):
            self.note(ctx, f"late {what}")
        self.note(ctx, name)
        time.sleep(seconds)
        return self.host

    def note(self, ctx: context.RequestContext, name: str) -> None:
        os.write(sys.stdout.fileno(), f"begins {name}.\n".encode())  # one write per line: threads are concurrent

    shout = note


def configure(directory: pathlib.Path, url: str, seconds: int = 3, **rabbit: Any) -> pathlib.Path:
    """Write a configuration file for the broker. ``seconds`` is the RPC timeout, ``rabbit`` are options of the
    driver."""
    file = directory / "nova.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {url}\nrpc_response_timeout = {seconds}\n[oslo_messaging_rabbit]\n"
                    + "".join(f"{name} = {value}\n" for name, value in rabbit.items()))
    return file


def transport(config: pathlib.Path) -> Any:
    conf.load(["--config-file", str(config)])
    return bus.connect(conf.CONF)


def start(config: pathlib.Path, host: str) -> Process:
    """Start the server and wait until it listens."""
    process = Process(host, [sys.executable, "-m", "tests.integration.bus.bus_desk", str(config), host],
                      config.parent / f"{host}.log", env={"PYTHONPATH": str(ROOT)})
    process.start()
    eventually(lambda: "listens" in process.tail(), 60, f"{host} consumes its queue")
    return process


def main(config: str, host: str) -> None:
    bus.serve(transport(pathlib.Path(config)), Desk.topic, host, [(Desk, Clerk(host))], threads=THREADS)
    print("listens", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
