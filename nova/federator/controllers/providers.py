"""Providers of clusters: their registry, and the provider that runs a program of the operator."""

import asyncio
import contextlib
import logging
import os
import pathlib
import signal
import tempfile
from collections.abc import Mapping
from importlib.metadata import entry_points

import msgspec

from nova.common.errors import Invalid
from nova.federator.api.provider import NodeGroups, Provider, ProviderError, Target

LOG = logging.getLogger(__name__)
NAMESPACE = "nova.federator.providers"
HELPER = "NOVA_STANDBY_HELPER"  # environment variable: the program of ExecProvider
_OUTPUT = 64 << 10  # bytes of a program's output that are read; the rest is ignored
_MESSAGE = 300  # maximum length of an error message, which is the last line on standard error


class Providers:
    """The configured providers by name. ``environment``: the environment variables of the scheduler."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._classes = {entry.name: entry for entry in entry_points(group=NAMESPACE)}
        self._loaded: dict[str, Provider | None] = {}

    def of(self, name: str) -> Provider | None:
        """Return the provider of clusters with this ``spec.provider``: the provider of that name, otherwise the
        operator's program, or None if neither is configured."""
        return self._load(name) or self._load("exec")

    def _load(self, name: str) -> Provider | None:
        if name in self._classes and name not in self._loaded:
            try:
                self._loaded[name] = self._classes[name].load()(self.environment)
            except Invalid as error:
                LOG.info("Provider %s is not configured (%s); its clusters use the program of %s if that is set", name,
                         error, HELPER)
                self._loaded[name] = None
            except Exception:  # a defect of a provider must not stop the scheduler
                LOG.exception("Cannot load provider %s; correct it and restart the scheduler", name)
                self._loaded[name] = None
        return self._loaded.get(name)


class ExecProvider:
    """Runs the program of NOVA_STANDBY_HELPER as ``PROGRAM VERB NAME``, with the cluster as JSON on standard input. The
    program succeeds with exit code 0; for ``describe`` it prints the node groups as JSON."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.program = pathlib.Path(environment.get(HELPER) or "")
        if not self.program.is_absolute():
            raise Invalid(f"{HELPER}: not the absolute path of a program.")

    async def describe(self, target: Target) -> NodeGroups:
        output = await self._run("describe", target)
        try:
            return msgspec.json.decode(output or b"{}", type=dict[str, dict[str, str | int]])
        except msgspec.MsgspecError as error:
            raise ProviderError(f"{self.program} describe printed no node groups: {error}") from None

    async def suspend(self, target: Target) -> None:
        await self._run("suspend", target)

    async def resume(self, target: Target) -> None:
        await self._run("resume", target)

    async def delete(self, target: Target) -> None:
        await self._run("delete", target)

    async def create(self, target: Target) -> None:
        await self._run("create", target)

    async def _run(self, verb: str, target: Target) -> bytes:
        """Run the program and return its output. If the call is cancelled, the program is killed with its children."""
        # Files, not pipes: processes that the program leaves behind, such as an agent, would keep pipes open.
        with (tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output,
              tempfile.TemporaryFile() as errors):
            source.write(msgspec.json.encode(target))
            source.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(str(self.program), verb, target.name, stdin=source,
                                                               stdout=output, stderr=errors, start_new_session=True)
            except OSError as error:
                raise ProviderError(f"{self.program} cannot be executed: {error.strerror}") from None
            try:
                await process.wait()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                raise
            if process.returncode:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - _OUTPUT))
                lines = errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
                raise ProviderError(f"{self.program.name} {verb} ended with code {process.returncode}:"
                                    f" {lines[-1][:_MESSAGE]}")
            output.seek(0)
            return output.read(_OUTPUT)
