"""The shell of a guest on its first serial port, which needs no agent and no network."""

from __future__ import annotations

import os
import re
import select
import time
import uuid
from typing import Self

from tests.integration.hosts.two_hosts import RealHost

# The console account of the image of tools/guest-image.
_USER, _PASSWORD = "nova", "novaguest"
_PROMPT = re.compile(rb"\w+@[\w-]+:[^\r\n]*[$#] (\x1b\[6n)?$")


class Silence(AssertionError):
    """The guest did not print the expected text in time."""


class GuestShell:
    """The shell of a ``domain`` on ``host``. After a migration, the shell opened on the new host is the same process.

    The terminals of all hosts are those of this machine, so the shell is opened without entering the host.
    """

    def __init__(self, host: RealHost, domain: str, seconds: float = 120.0) -> None:
        """Prepare the connection. ``seconds`` is the timeout for the boot."""
        self._host, self._domain, self._seconds = host, domain, seconds
        self._handle = -1

    def __enter__(self) -> Self:
        path = self._host.virsh("ttyconsole", self._domain).strip()
        self._handle = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            self._log_in()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def run(self, command: str, seconds: float = 30.0) -> str:
        """Run a command, which must succeed, and return its output without carriage returns."""
        mark = uuid.uuid4().hex[:8]
        # The terminal echoes the input, so the marks must not appear in it.
        line = f"echo {mark[:4]}''{mark[4:]}; {command}; echo {mark[4:]}''{mark[:4]}:$?"
        end = re.compile(rf"{mark[4:]}{mark[:4]}:(\d+)\r\n".encode())
        text = self._read(end, seconds, self._begin(line, re.compile(f"{mark}\r\n".encode()), seconds))
        found = end.search(text)
        assert found is not None
        printed = text[:found.start()].partition(f"{mark}\r\n".encode())[2].decode(errors="replace").replace("\r", "")
        assert found[1] == b"0", f"{command!r} in {self._domain} failed ({found[1].decode()}): {printed}"
        return printed

    def _begin(self, line: str, begun: re.Pattern[bytes], seconds: float) -> bytes:
        """Type the line until the guest starts the command; return the output. A busy guest loses serial input."""
        deadline = time.monotonic() + seconds
        while True:
            self._type(line)
            try:
                return self._read(begun, min(seconds, 8))
            except Silence:
                if time.monotonic() > deadline:
                    raise
            self._type("\x03")  # discards an incomplete or late line

    def _log_in(self) -> None:
        """Log in, whether the guest is booting, shows a login prompt, or has a session."""
        deadline = time.monotonic() + self._seconds
        waiting, prompt = re.compile(rb"login: $|Password: $|" + _PROMPT.pattern), _PROMPT
        text, seen = b"", ""
        while not prompt.search(text):
            assert time.monotonic() < deadline, f"{self._domain} on {self._host.name} shows no prompt: {seen[-2000:]}"
            try:
                if text.endswith(b"login: "):
                    self._type(_USER)
                    text = self._read(waiting, 30)
                elif text.endswith(b"Password: "):
                    # The guest discards input when it shows this prompt, so an early password would be lost.
                    time.sleep(0.3)
                    self._type(_PASSWORD)
                    text = self._read(waiting, 10)
                else:
                    self._type("")  # input during the boot is lost
                    text = self._read(waiting, 5)
            except AssertionError as error:
                seen += f"{error}\n"
                text = b""
        self.run("stty -echo cols 200 2> /dev/null; PS1='guest@shell:$ '")

    def _type(self, line: str) -> None:
        os.write(self._handle, f"{line}\r".encode())

    def _read(self, until: re.Pattern[bytes], seconds: float, text: bytes = b"") -> bytes:
        """Read the guest's output until the pattern matches, starting with the already read ``text``."""
        deadline = time.monotonic() + seconds
        while not until.search(text):
            left = deadline - time.monotonic()
            if left <= 0:
                raise Silence(f"{self._domain} on {self._host.name} does not say {until.pattern!r}: {text[-2000:]!r}")
            if select.select([self._handle], [], [], left)[0]:
                try:
                    text += os.read(self._handle, 4096)
                except OSError as error:  # The guest has stopped, or has not opened its end yet.
                    raise AssertionError(f"the console of {self._domain} on {self._host.name} is gone: {text[-500:]!r}"
                                         ) from error
        return text


def count_in_background(pause: str) -> str:
    """Return the command of a background process that counts in /tmp/count and stores its PID in /tmp/pid. The count
    file always contains a number."""
    return ("echo 0 > /tmp/count; n=0; (while :; do n=$((n + 1)); echo $n > /tmp/next; mv /tmp/next /tmp/count; "
            f"{pause}; done) & echo $! > /tmp/pid")
