"""Streams into pods, by kubectl: commands with input, and connections to ports."""

import asyncio
import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import AsyncIterator

from nova.common.errors import Invalid, ReportedError
from nova.federator.kube.config import Kubeconfig

_TIMEOUT = 30.0  # seconds until a port is forwarded
_SILENCE = 60.0  # seconds without progress after which a command in a pod is aborted: its node may be lost


async def execute(config: Kubeconfig, namespace: str, pod: str, container: str, command: str,
                  source: pathlib.Path) -> None:
    """Run a shell command in a container, with a file as input. Raises ReportedError with the output of the command if
    it fails, or if it reads no input for _SILENCE and does not end."""
    with source.open("rb") as content:
        async with _kubectl(config, "exec", "-i", "-n", namespace, pod, "-c", container, "--", "sh", "-c", command,
                            stdin=content.fileno()) as process:
            ending = asyncio.ensure_future(process.communicate())
            position = -1
            # kubectl shares the position in the file: it moves while kubectl sends.
            while position != (position := os.lseek(content.fileno(), 0, os.SEEK_CUR)) and not ending.done():
                await asyncio.wait([ending], timeout=_SILENCE)
            if not ending.done():
                ending.cancel()
                raise ReportedError(f"{command.split()[0]} in pod {pod} made no progress for {_SILENCE:.0f} s.")
            output, _none = ending.result()
    if process.returncode:
        raise ReportedError(f"{command.split()[0]} in pod {pod} failed: {output.decode(errors='replace').strip()}")


@contextlib.asynccontextmanager
async def forward(config: Kubeconfig, namespace: str, pod: str, port: int) -> AsyncIterator[int]:
    """Forward a port of this machine, which is yielded, to a port of a pod. Raises ReportedError."""
    async with _kubectl(config, "port-forward", "-n", namespace, f"pod/{pod}", f":{port}", "--address=127.0.0.1",
                        ) as process:
        assert process.stdout
        try:
            line = (await asyncio.wait_for(process.stdout.readline(), _TIMEOUT)).decode(errors="replace")
        except TimeoutError:
            line = f"no response within {_TIMEOUT:.0f} s"
        match = re.search(r"127\.0\.0\.1:(\d+) ->", line)
        if match is None:
            raise ReportedError(f"Port {port} of pod {pod} cannot be reached: {line.strip()}")
        yield int(match[1])


@contextlib.asynccontextmanager
async def _kubectl(config: Kubeconfig, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL,
                   ) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run kubectl with the credentials of ``config``, and kill it at the end of the context."""
    with tempfile.NamedTemporaryFile("w", prefix="nova-") as file:  # mode 0600
        file.write(config.render())
        file.flush()
        try:
            process = await asyncio.create_subprocess_exec(
                "kubectl", f"--kubeconfig={file.name}", *arguments, stdin=stdin, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT)
        except FileNotFoundError:
            raise Invalid("kubectl is not in PATH.") from None
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
