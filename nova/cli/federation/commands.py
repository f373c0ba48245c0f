"""The commands of novactl. Each opens the clusters that it needs, and prints its result."""

import argparse
import asyncio
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nova.cli.federation import operations
from nova.cli.federation.completion import script
from nova.cli.federation.contexts import NOVA, connect, context_of, namespace_of, nova_api
from nova.common import files
from nova.common.errors import Invalid, ReportedError, os_error_text
from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig

if TYPE_CHECKING:
    from nova.federator.client.status import Line

_PLUGIN = "kubectl-nova"


def run(options: argparse.Namespace) -> int:
    """Run the command of parsed arguments and return the exit code. Raises ReportedError."""
    name = " ".join(filter(None, (options.command, getattr(options, "subject", ""))))
    command = _COMMANDS[name.replace(" cp", " control-plane")]
    result = command(options)
    return (result if result is None or isinstance(result, int) else asyncio.run(result)) or 0


def kubectl_install(options: argparse.Namespace) -> None:
    program = pathlib.Path(shutil.which(sys.argv[0]) or sys.argv[0]).resolve()
    target = options.directory / _PLUGIN
    try:
        if target.resolve() != program:
            target.unlink(missing_ok=True)
            target.symlink_to(program)
    except OSError as error:
        raise ReportedError(f"Cannot install {target}: {os_error_text(error)}. Run the command as root, or choose"
                            " with --directory a writable directory on PATH.") from None
    print(f"{_PLUGIN} is installed: {target}")


async def install_control_plane(options: argparse.Namespace) -> None:
    from nova.federator.client.installation import install_control_plane as install
    from nova.federator.client.manifests import Settings

    path = pathlib.Path.home() / ".nova" / _folder(options.name) / "nova-kubeconfig"

    def save(config: Kubeconfig) -> None:
        try:
            files.private_directory(path.parent)
            files.replace(path, config.render())
        except OSError as error:
            raise ReportedError(f"Cannot store the kubeconfig: {os_error_text(error)}") from None

    settings = Settings(namespace=namespace_of(options), repository=options.image_repository, tag=options.image_tag,
                        replicas=options.replicas, timeout=options.timeout)
    async with connect(_hosting(options)) as hosting:
        await install(hosting, options.name, settings, connect, _report, save)
    print(f"Kubeconfig: {path}")


async def uninstall_control_plane(options: argparse.Namespace) -> None:
    from nova.federator.client.installation import uninstall_control_plane as remove_control_plane
    from nova.federator.client.manifests import Settings

    folder = pathlib.Path.home() / ".nova" / _folder(options.name)
    async with connect(_hosting(options)) as hosting:
        complete = await remove_control_plane(hosting, Settings(namespace=namespace_of(options)))
    files.remove(str(folder / "nova-kubeconfig"))
    print(f"Nova Control Plane {options.name} uninstalled.")
    if not complete:
        print(f"Namespace {namespace_of(options)}, which novactl did not create, remains with the volumes of etcd.")


async def install_agent(options: argparse.Namespace) -> None:
    from nova.federator.client import installation
    from nova.federator.client.manifests import Settings
    from nova.federator.client.tokens import bootstrap_config, create_token

    settings = Settings(namespace=namespace_of(options), repository=options.image_repository, tag=options.image_tag,
                        cluster=_cluster(options.name))
    async with connect(context_of(options, options.context)) as workload:
        if options.init_kubeconfig:
            init = installation.decode_init(options.init_kubeconfig)
            await installation.check_agent(workload, settings, None)
        else:
            config = context_of(options, options.nova_context)
            async with connect(config) as nova:
                await installation.check_agent(workload, settings, nova)
                init = bootstrap_config(config, await create_token(nova, options.name))
        await installation.install_agent(workload, settings, init)
    print(f"Agent of cluster {options.name} installed in namespace {settings.namespace}.")


async def uninstall_agent(options: argparse.Namespace) -> None:
    from nova.federator.client.installation import uninstall_agent as remove_agent
    from nova.federator.client.manifests import Settings

    async with connect(context_of(options, options.context)) as workload:
        await remove_agent(workload, Settings(namespace=namespace_of(options), cluster=_cluster(options.name)))
    print(f"Agent of cluster {options.name} uninstalled. The Cluster object and the copies of workloads remain.")


def install_certs(options: argparse.Namespace) -> None:
    import yaml

    from nova.federator.client.certificates import CertificateOptions, secrets

    certificates = CertificateOptions(endpoint=options.apiserver_public_endpoint, namespace=namespace_of(options),
                                      node=options.nova_node_ip)
    print(yaml.safe_dump_all(secrets(certificates), sort_keys=False, width=1 << 20), end="")


async def get_kubeconfig(options: argparse.Namespace) -> None:
    from nova.federator.client.installation import kubeconfig

    async with connect(_hosting(options)) as hosting:
        print((await kubeconfig(hosting, namespace_of(options))).render(), end="")


async def get_schedulegroups(options: argparse.Namespace) -> None:
    from nova.federator.client.status import schedule_groups

    async with nova_api(options) as nova:
        print(await schedule_groups(nova))


async def status(options: argparse.Namespace) -> int:
    from nova.federator.client.status import components, local_components, resources

    config = context_of(options, options.context or NOVA)
    parts = None if options.hosting_cluster_context else operations.local_parts(options, config)
    if parts is not None:
        async with connect(config) as nova:
            return _print_status([local_components(parts), await resources(nova)])
    if not options.hosting_cluster_context and context_of(options, "").context == config.context:
        raise Invalid(f"The current context is {config.context}, the Nova API server. Set --hosting-cluster-context.")
    async with connect(context_of(options, options.hosting_cluster_context)) as hosting, connect(config) as nova:
        return _print_status([await components(hosting, namespace_of(options)), await resources(nova)])


def _print_status(sections: Sequence[Sequence["Line"]]) -> int:
    for line in (line for section in sections for line in section):
        print(line)
    return 1 if any(line.mark == "×" for section in sections for line in section) else 0


async def join_command(options: argparse.Namespace) -> None:
    from nova.federator.client.installation import encode_init
    from nova.federator.client.tokens import bootstrap_config, create_token

    config, name = context_of(options, options.context or NOVA), _cluster(options.name)
    if options.server and not options.server.startswith("https://"):
        raise Invalid(f"--server: {options.server[:200]!r} is not an https address.")
    async with connect(config) as nova:
        init = bootstrap_config(config, await create_token(nova, name, options.hours), options.server)
    print(f"# Run this command once, within {options.hours} hours, with the kubeconfig of the workload cluster:")
    namespace = f" --namespace={shlex.quote(options.namespace)}" if options.namespace else ""
    print(f"novactl install agent {shlex.quote(name)}{namespace} --init-kubeconfig={encode_init(init)}")


async def certs_renew(options: argparse.Namespace) -> None:
    from nova.federator.client.installation import kubeconfig
    from nova.federator.client.renewal import Renewal

    async with connect(_hosting(options)) as hosting:
        server = (await kubeconfig(hosting, namespace_of(options))).server

        def at_public_address(config: Kubeconfig) -> Api:
            return connect(_with_server(config, server))

        renewal = Renewal(hosting, namespace_of(options), at_public_address, _report)
        await (renewal.finish() if options.finish else renewal.renew(options.force))


def completion(options: argparse.Namespace) -> None:
    print(script(options.shell), end="")


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int | None] | int | None]] = {
    "kubectl-install": kubectl_install, "install control-plane": install_control_plane,
    "uninstall control-plane": uninstall_control_plane, "install agent": install_agent,
    "uninstall agent": uninstall_agent, "install certs": install_certs, "get kubeconfig": get_kubeconfig,
    "get schedulegroups": get_schedulegroups, "status": status, "join-command": join_command,
    "certs renew": certs_renew, "completion": completion, "explain": operations.explain, "plan": operations.plan,
    "drain": operations.drain, "up": operations.up, "down": operations.down, "backup": operations.backup,
    "restore": operations.restore}


def _report(line: str) -> None:
    print(line, flush=True)


def _hosting(options: argparse.Namespace) -> Kubeconfig:
    return context_of(options, options.hosting_cluster_context or options.context)


def _with_server(config: Kubeconfig, server: str) -> Kubeconfig:
    import msgspec

    return msgspec.structs.replace(config, server=server)


def _cluster(name: str) -> str:
    import re

    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name):
        raise Invalid(f"{name[:80]!r} is not a valid name of a cluster: lower-case letters, digits, '-' and '.'.")
    return name


def _folder(name: str) -> str:
    if not name or os.sep in name or name.startswith("."):
        raise Invalid(f"{name[:80]!r} is not a valid name of a control plane.")
    return name
