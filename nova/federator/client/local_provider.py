"""The provider of the clusters of ``novactl up``: stops, starts, deletes and creates them on this machine."""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator, Mapping

from nova.common import files
from nova.common.errors import Invalid, ReportedError
from nova.federator.api.provider import NodeGroups, ProviderError, Target
from nova.federator.client.local import DIRECTORY, LocalFederation
from nova.federator.local.cluster import LocalCluster
from nova.federator.local.whole import WholeCluster

_START = 600.0  # timeout of the start of a cluster, in seconds; the machine may be busy


class LocalProvider:
    """Works on the directory of a federation. A stopped cluster is marked, so that its supervisor leaves it stopped."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        if not environment.get(DIRECTORY):
            raise Invalid(f"{DIRECTORY}: not set.")
        self.directory = pathlib.Path(environment[DIRECTORY])

    async def describe(self, target: Target) -> NodeGroups:
        with self._member(target.name) as (_federation, member):
            count = member.options.nodes.count if member.options.nodes else 1
            return {"nodes": {"instanceType": "local", "minSize": 0, "maxSize": count, "desiredCapacity": count}}

    async def suspend(self, target: Target) -> None:
        with self._member(target.name) as (federation, member):
            member.mark_suspended(True)
            await federation.processes.stop([federation.agent_of(target.name)])
            await member.stop_parts()

    async def resume(self, target: Target) -> None:
        with self._member(target.name) as (federation, member):
            await self._start(federation, member)

    async def delete(self, target: Target) -> None:
        if not (self.directory / target.name).exists():
            return
        with self._member(target.name) as (federation, member):
            member.mark_suspended(True)
            await federation.processes.stop([federation.agent_of(target.name)])
            await member.stop_parts(kill=True)
            shutil.rmtree(member.directory, ignore_errors=True)

    async def create(self, target: Target) -> None:
        if "workload-" not in target.name:  # LocalFederation would not recognize the directory as that of a member
            raise ProviderError(f"Cannot create cluster {target.name} in {self.directory}: the names of local clusters"
                                " must contain workload-.")
        directory = self.directory / target.name
        if not directory.exists():
            files.private_directory(directory)
        with self._member(target.name) as (federation, member):
            if not (directory / "init.kubeconfig").exists():
                files.replace(directory / "init.kubeconfig", target.kubeconfig)
            await self._start(federation, member)

    async def _start(self, federation: LocalFederation, member: LocalCluster) -> None:
        await member.start(_START)
        await federation.start_agent(member.name)
        member.mark_suspended(False)

    @contextlib.contextmanager
    def _member(self, name: str) -> Iterator[tuple[LocalFederation, LocalCluster]]:
        """Yield the federation and one of its members, read from the directory. Errors become ProviderErrors."""
        try:
            federation = LocalFederation(self.directory)
            member = next((member for member in federation.members if member.name == name), None)
            if member is None or isinstance(member, WholeCluster):
                raise ProviderError(f"{self.directory} has no cluster {name} with simulated nodes.")
            yield federation, member
        except ProviderError:
            raise
        except (ReportedError, OSError) as error:
            raise ProviderError(str(error)) from error
