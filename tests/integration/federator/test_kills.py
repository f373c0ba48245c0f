"""Nothing is lost: scheduler and agent end at each write of a move, as if killed, and the API server loses its history.

The process under test runs inside the test, with a client that executes the n-th write and then never answers again.
Chapter 11 of the facts, and the crash tests of the design: every step is conditional and can be repeated.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nova.federator.service import agent as agent_service
from nova.federator.service.scheduler import Scheduler
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import Federation, policy
from tests.integration.federator.mortal import Deadline, MortalApi, run_until_killed

NAMESPACE = "kills"
_MOST = 40  # writes of a move


@pytest.fixture(scope="module")
def federation(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory,
               ) -> Iterator[Federation]:
    with Federation(control_plane, members[:2], tmp_path_factory.mktemp("kills")) as federation:
        labels = {"kills": "yes", "app": "web"}
        federation.nova.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, pair(0))
        federation.nova.apply(deployment("web", 2, NAMESPACE, labels), {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf", "namespace": NAMESPACE,
                                                                  "labels": labels}})
        until(lambda: converged(federation, 0))
        yield federation
        federation.nova.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        federation.nova.kubectl("delete", "schedulepolicies", "--all")


def pair(number: int) -> dict[str, Any]:
    """Return the policy that places the group in a member, by turns."""
    return policy("kills", {"kills": "yes"}, [f"member-{number % 2 + 1}"], groupBy={"labelKey": "app"})


def converged(federation: Federation, number: int) -> bool:
    """Return True if the copies are in the member of the policy, complete, and nowhere else."""
    for index, member in enumerate(federation.members):
        web = member.get("deployment", "-n", NAMESPACE)["items"]
        conf = member.get("configmap", "-n", NAMESPACE, "--field-selector=metadata.name=conf")["items"]
        stored = [item for item in federation.nova.get("schedules", "-n", f"nova-cluster-{member.name}")["items"]
                  if NAMESPACE in json.dumps(item["spec"]["objects"])]
        here = index == number % 2
        if (len(web), len(conf), len(stored)) != (here, here, here) or (here and web[0].get("status", {}).get(
                "readyReplicas") != 2):
            return False
    return True


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_scheduler_may_end_at_each_write_of_a_move(federation: Federation, step: int) -> None:
    """Crash safety: after each write, a new scheduler completes the move; no copy and no schedule is left over."""
    async def run(writes: int) -> bool:
        deadline = Deadline(writes)
        async with MortalApi(deadline, federation.nova.config) as api:
            return await run_until_killed(deadline, Scheduler(api, None, identity="kills").run(), 12.0)
    federation.scheduler.stop()
    moves = 0
    for writes in range(1, _MOST, step):
        moves += 1
        federation.nova.apply(pair(moves))
        killed = asyncio.run(run(writes))
        federation.nova.kubectl("patch", "lease", "nova-scheduler", "-n", "elotl", "--type=merge", "-p",
                                '{"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}')
        federation.scheduler.start()
        until(lambda moves=moves: converged(federation, moves), 90)
        federation.scheduler.stop()
        if not killed:
            break
    federation.nova.apply(pair(0))
    federation.scheduler.start()
    until(lambda: converged(federation, 0), 90)
    assert moves > 1


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_an_agent_may_end_at_each_write_of_a_move(federation: Federation, step: int,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash safety: after each write to its cluster or to the control plane, a new agent completes the move."""
    member = federation.members[0]

    async def run(writes: int) -> bool:
        deadline = Deadline(writes)
        monkeypatch.setattr(agent_service, "Api", functools.partial(MortalApi, deadline))
        return await run_until_killed(deadline, agent_service.run_agent(
            lambda: federation.nova.config, lambda: member.config, member.name, "elotl"), 15.0)

    def release() -> None:
        federation.nova.kubectl("patch", "lease", "heartbeat", "-n", f"nova-cluster-{member.name}", "--type=merge",
                                "-p", '{"spec": {"holderIdentity": ""}}')
    moves = 0
    for writes in range(1, _MOST, step):
        moves += 1
        federation.agents[member.name].stop()
        federation.nova.apply(pair(moves))
        killed = asyncio.run(run(writes))
        release()
        federation.agents[member.name].start()
        until(lambda moves=moves: converged(federation, moves), 90)
        if not killed:
            break
    federation.nova.apply(pair(0))
    until(lambda: converged(federation, 0), 90)
    assert moves > 1
