"""Commands of novactl that explain and change placements, and that run a federation on this machine."""

import argparse
import asyncio
import contextlib
import logging
import pathlib
import signal
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

import yaml

from nova.cli.federation.contexts import connect, context_of, namespace_of, nova_api
from nova.common.errors import Invalid, os_error_text
from nova.federator.kube.config import Kubeconfig, load

_MARKS = {"runs": "√", "chosen": "√", "fits": "-", "rejected": "×"}


async def explain(options: argparse.Namespace) -> None:
    from nova.federator.client.explain import explain as explanation_of

    kind, slash, name = options.object.partition("/")
    if not slash or not name:
        raise Invalid(f"{options.object!r} is not KIND/NAME, such as deploy/web.")
    async with nova_api(options) as nova:
        explanation = await explanation_of(nova, kind, name, options.namespace or "default")
    print(f"{explanation.ref.key}: {explanation.summary}")
    width = max((len(line.cluster) for line in explanation.lines), default=0)
    for line in explanation.lines:
        print(f"  {_MARKS[line.state]} {line.cluster:{width}}  {line.text}")


async def plan(options: argparse.Namespace) -> None:
    from nova.federator.client.explain import plan as moves_of

    try:
        text = sys.stdin.read() if options.file == "-" else pathlib.Path(options.file).read_text(encoding="utf-8")
        policies = [document for document in yaml.safe_load_all(text) if document]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = os_error_text(error) if isinstance(error, OSError) else str(error)[:300]
        raise Invalid(f"Cannot read policies from {options.file}: {reason}") from None
    if not all(isinstance(policy, dict) for policy in policies):
        raise Invalid(f"{options.file} has a document that is not an object.")
    async with nova_api(options) as nova:
        moves = await moves_of(nova, policies)
    for move in moves:
        print(f"{move.ref.key}: {_places(move.before)} -> {_places(move.after)}")
    print(f"{len(moves)} objects would change. Nothing was changed.")


def _places(shares: Mapping[str, int | None]) -> str:
    return ", ".join(name if replicas is None else f"{name} ({replicas})"
                     for name, replicas in sorted(shares.items())) or "nowhere"


async def drain(options: argparse.Namespace) -> None:
    from nova.federator.client.removal import remove_cluster

    async with nova_api(options) as nova:
        await remove_cluster(nova, options.name, options.orphan, options.timeout, print)


def up(options: argparse.Namespace) -> None:
    from nova.federator.client.local import LocalFederation, stored

    directory = options.directory.expanduser()
    if options.supervise:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        _until_signal(stored(directory).supervise())
        return
    federation = LocalFederation(directory, options.demo, options.whole, options.port)
    print(f"Starting Nova in {directory}: the control plane and {len(federation.members)} workload clusters")
    asyncio.run(federation.start())
    federation.start_supervisor()
    print("Nova is running." + "".join(f"\n  cluster {member.name} is connected" for member in federation.members))
    print(f"Use it:           export KUBECONFIG={federation.kubeconfig}")
    print("Join a cluster:   novactl join-command NAME")
    print("Stop it:          novactl down")


def _until_signal(loop: Coroutine[Any, Any, None]) -> None:
    async def supervise() -> None:
        task = asyncio.ensure_future(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
    asyncio.run(supervise())


def local_parts(options: argparse.Namespace, config: Kubeconfig) -> Mapping[str, bool] | None:
    """Return {component: True if it runs}; None if the context does not select the control plane of 'novactl up'."""
    from nova.federator.client.local import stored

    directory = options.directory.expanduser()
    if not (directory / "kubeconfig").exists() or load([directory / "kubeconfig"], "nova").server != config.server:
        return None
    return stored(directory).running()


async def down(options: argparse.Namespace) -> None:
    from nova.federator.client.local import stored

    federation = stored(options.directory.expanduser())
    await (federation.remove() if options.delete else federation.stop())
    print("Nova is stopped, and everything is deleted." if options.delete else
          "Nova is stopped; 'novactl up' starts it again.")


async def backup(options: argparse.Namespace) -> None:
    from nova.federator.client.local import stored

    if options.hosting_cluster_context:
        from nova.federator.client.backup import save

        async with connect(context_of(options, options.hosting_cluster_context)) as hosting:
            await save(hosting, namespace_of(options), options.file, print)
    else:
        await stored(options.directory.expanduser()).backup(options.file)
    print(f"The backup of the control plane is in {options.file}. The file contains Secrets: keep it private.")


async def restore(options: argparse.Namespace) -> None:
    from nova.federator.client.local import LocalFederation

    if options.hosting_cluster_context:
        from nova.federator.client.backup import Restoration

        async with connect(context_of(options, options.hosting_cluster_context)) as hosting:
            await Restoration(hosting, namespace_of(options), options.file, print).run()
    else:
        federation = LocalFederation(options.directory.expanduser())
        await federation.restore(options.file)
        await federation.start()
        federation.start_supervisor()
    print(f"The control plane is restored from {options.file}. Agents reconnect by themselves.")
