"""Recovery plans: an alert starts each matching plan once, and its steps run in order, once, also if schedulers end at
any write. Facts chapter 2.4, against real API servers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from nova.federator.controllers.events import Recorder
from nova.federator.controllers.recovery import ALERTS, RUNS, Recovery
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.config import Kubeconfig
from tests.integration.federator.clusters import Cluster, deployment, job, until
from tests.integration.federator.federation import Federation
from tests.integration.federator.mortal import Deadline, MortalApi, run_until_killed

NAMESPACE = "recovery"
TOKEN = "5b6d1f8ce1f94a0f"
_MOST = 30  # writes of the runs of an alert
MARKER = "nova.elotl.co/recovered-by"


def target(resource: str, name: str, api_version: str = "v1", namespace: str = NAMESPACE) -> dict[str, str]:
    return {"apiVersion": api_version, "resource": resource, "namespace": namespace, "name": name}


def patch(where: dict[str, str], path: str, raw: Any) -> dict[str, Any]:
    return {"type": "patch", "patch": {**where, "override": {"fieldPath": path, "value": {"raw": raw}},
                                       "patchType": "application/merge-patch+json"}}


def read(where: dict[str, str], path: str, key: str) -> dict[str, Any]:
    return {"type": "readField", "readField": {**where, "fieldPath": path, "outputKey": key}}


def job_step(cluster: str = "", **fields: Any) -> dict[str, Any]:
    annotations = {"nova.elotl.co/cluster": cluster} if cluster else {}
    return {"type": "Job", "title": "check", "job": {
        "namespace": NAMESPACE, "annotations": annotations, "spec": job("x")["spec"], **fields}}


def plan(name: str, labels: dict[str, str], *steps: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "recovery.elotl.co/v1alpha1", "kind": "RecoveryPlan", "metadata": {"name": name},
            "spec": {"alertLabels": labels, "steps": list(steps)}}


def alert(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "recovery.elotl.co/v1alpha1", "kind": "ReceivedAlert", "metadata": {"name": name},
            "spec": {"labels": labels}}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


def runs(nova: Cluster, label: str) -> dict[str, Any]:
    """Return the runs of the plans for alerts whose name begins with the text, by plan."""
    return {run["spec"]["plan"]: run for run in nova.get("recoveryruns")["items"]
            if run["spec"]["alert"].startswith(label)}


def ended(nova: Cluster, plan_name: str, alert_name: str) -> dict[str, Any]:
    """Return the status of the run of a plan for an alert once it has ended."""
    def status() -> Any:
        run = runs(nova, alert_name).get(plan_name, {})
        return run.get("status") if run.get("status", {}).get("phase") in ("Succeeded", "Failed") else None
    result: dict[str, Any] = until(status)
    return result


@pytest.fixture(scope="module")
def nova(control_plane: Cluster) -> Iterator[Cluster]:
    """Yield the control plane with a namespace; plans and alerts are removed after the tests."""
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield control_plane
    control_plane.kubectl("delete", "receivedalerts,recoveryplans,recoveryruns", "--all")
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


class Patches:
    """The patches of recovery runs to the ConfigMaps of the namespace, as a watch reports them."""

    def __init__(self, api: Api) -> None:
        self.api, self.markers = api, list[str]()
        self._last: dict[Any, tuple[str, str]] = {}

    async def follow(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        version = (await self.api.list(path))["metadata"]["resourceVersion"]
        async for event in self.api.watch(path, version):
            self._record(event.object)

    def _record(self, obj: Object) -> None:
        metadata, value = obj["metadata"], obj.get("data", {}).get("value", "")
        state = (metadata.get("annotations") or {}).get(MARKER, ""), value
        if value.startswith("patched") and state != self._last.get(metadata.get("name")):
            self.markers.append(state[0])
        self._last[metadata.get("name")] = state


async def interrupted(nova: Cluster, name: str, writes: int) -> bool:
    """Process an alert with a scheduler that ends after a number of writes, and with a second one. In between, a user
    reverts the patched fields. Return False if the first one wrote less than that."""
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    async with Api(nova.config) as api:
        for obj in (config_map("first", value="broken"), config_map("second", value="broken", source="eu")):
            await api.apply(f"{maps}/{obj['metadata']['name']}", obj, "test", force=True)
        patches = Patches(api)
        follower = asyncio.create_task(patches.follow())
        await asyncio.sleep(0.2)
        await api.create(ALERTS, alert(name, {"app": "kill", "severity": "high", "extra": "yes"}))
        deadline = Deadline(writes)
        async with MortalApi(deadline, nova.config) as mortal:
            killed = await run_until_killed(deadline, Recovery(mortal, Recorder(mortal)).run(), 4.0)
        for obj in (await api.list(maps))["items"]:
            if obj.get("data", {}).get("value", "").startswith("patched"):
                await api.patch(f"{maps}/{obj['metadata']['name']}", {"data": {"value": "reverted"}})
        successor = asyncio.create_task(Recovery(api, Recorder(api)).run())
        own: dict[str, Object] = {}
        async with asyncio.timeout(60):
            while len(own) < 2 or any("completionTime" not in run.get("status", {}) for run in own.values()):
                await asyncio.sleep(0.1)
                own = {run["metadata"]["name"]: run for run in (await api.list(RUNS))["items"]
                       if run["spec"]["alert"] == name}
        stored = (await api.get(f"{ALERTS}/{name}"))["status"]
        for task in (successor, follower):
            task.cancel()
        await asyncio.gather(successor, follower, return_exceptions=True)
    assert {run["status"]["phase"] for run in own.values()} == {"Succeeded"}
    assert stored == {"processed": True, "runs": sorted(own), "message": ""}
    assert len(patches.markers) == len(set(patches.markers)) == 3, (writes, patches.markers)
    return killed


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_scheduler_may_end_at_each_write_of_a_run(nova: Cluster, step: int) -> None:
    """Two plans match, and both patch the same object: a step that was executed is never executed again."""
    first, second = target("configmaps", "first"), target("configmaps", "second")
    nova.apply(plan("kill-a", {"app": "kill"}, patch(first, "data.value", "patched-a"),
                    read(second, "data.source", "Source"), patch(second, "data.value", "patched-{{ .Values.Source }}")),
               plan("kill-b", {"app": "kill", "severity": "high"}, patch(first, "data.value", "patched-b")))
    killed, writes = True, 1
    while killed:
        killed = asyncio.run(interrupted(nova, f"kill-{step}-{writes}", writes))
        writes += step
    assert 12 < writes < _MOST
    nova.kubectl("delete", "recoveryplan", "kill-a", "kill-b")


class BusyApi(Api):
    """A client whose writes to a path are refused for some seconds, from the first one on."""

    def __init__(self, path: str, seconds: float, config: Kubeconfig) -> None:
        super().__init__(config)
        self._path, self._seconds, self._first = path, seconds, 0.0

    async def _request(self, method: str, path: str, *arguments: Any, **options: Any) -> Object:
        if method != "GET" and path == self._path:
            self._first = self._first or time.monotonic()
            if time.monotonic() < self._first + self._seconds:
                raise ApiError("busy", 503)
        return await super()._request(method, path, *arguments, **options)


def test_a_patch_waits_until_the_one_before_is_recorded(nova: Cluster) -> None:
    """An earlier scheduler has patched the object for run a, and ended before it recorded that. If run b patched the
    object now, its mark would replace the one by which the patch of run a is recognized."""
    async def finish() -> dict[str, Any]:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        async with BusyApi(f"{RUNS}/held-a/status", 3.0, nova.config) as api:
            for name in ("held-a", "held-b"):
                run = await api.create(RUNS, {
                    "apiVersion": "recovery.elotl.co/v1alpha1", "kind": "RecoveryRun", "metadata": {"name": name},
                    "spec": {"plan": "x", "alert": "x",
                             "steps": [patch(target("configmaps", "held"), "data.value", f"of {name}")]}})
                if name == "held-a":
                    obj = config_map("held", value="of held-a")
                    obj["metadata"]["annotations"] = {MARKER: f"held-a/1/{run['metadata']['uid']}"}
                    await api.create(path, obj)
                    async with Api(nova.config) as other:
                        await other.patch(f"{RUNS}/{name}/status", {"status": {
                            "phase": "Running", "generation": 1, "steps": [{"type": "patch", "state": "Running"}]}})
            scheduler = asyncio.create_task(Recovery(api, Recorder(api)).run())
            async with asyncio.timeout(60):
                for name in ("held-a", "held-b"):
                    while (await api.get(f"{RUNS}/{name}")).get("status", {}).get("phase") != "Succeeded":
                        await asyncio.sleep(0.1)
            scheduler.cancel()
            await asyncio.gather(scheduler, return_exceptions=True)
            return await api.get(f"{path}/held")
    assert asyncio.run(finish())["data"]["value"] == "of held-b"


class RefusingApi(Api):
    """A client whose runs of one plan are refused, as an admission webhook does."""

    async def create(self, path: str, body: Any, **query: str) -> Object:
        if path == RUNS and body["spec"]["plan"] == "refused-a":
            raise ApiError("refused by a webhook", 403, "Forbidden")
        return await super().create(path, body, **query)


def test_a_plan_whose_run_is_refused_does_not_prevent_other_plans(nova: Cluster) -> None:
    step = patch(target("configmaps", "missing"), "data.value", "x")
    nova.apply(*(plan(name, {"app": "refused"}, step) for name in ("refused-a", "refused-b")))

    async def start() -> Any:
        async with RefusingApi(nova.config) as api:
            scheduler = asyncio.create_task(Recovery(api, Recorder(api)).run())
            await api.create(ALERTS, alert("refused", {"app": "refused"}))
            async with asyncio.timeout(30):
                while not (started := [run for run in (await api.list(RUNS))["items"]
                                       if run["spec"]["alert"] == "refused"]):
                    await asyncio.sleep(0.1)
            stored = await api.get(f"{ALERTS}/refused")
            scheduler.cancel()
            await asyncio.gather(scheduler, return_exceptions=True)
            return [run["spec"]["plan"] for run in started], stored.get("status", {}).get("processed", False)
    assert asyncio.run(start()) == (["refused-b"], False)
    nova.kubectl("delete", "recoveryplans", "refused-a", "refused-b")


def test_a_run_that_was_changed_while_no_scheduler_ran_fails(nova: Cluster) -> None:
    """A run without its present step must not stop the next scheduler."""
    step = patch(target("configmaps", "changed"), "data.value", "x")

    async def finish() -> Any:
        async with Api(nova.config) as api:
            await api.create(RUNS, {
                "apiVersion": "recovery.elotl.co/v1alpha1", "kind": "RecoveryRun", "metadata": {"name": "changed"},
                "spec": {"plan": "x", "alert": "x", "steps": [step, step]}})
            await api.patch(f"{RUNS}/changed/status", {"status": {"phase": "Running", "generation": 1, "steps": [
                {"type": "patch", "state": "Succeeded"}, {"type": "patch", "state": "Running"}]}})
            await api.patch(f"{RUNS}/changed", {"spec": {"steps": [step]}})
            scheduler = asyncio.create_task(Recovery(api, Recorder(api)).run())
            async with asyncio.timeout(30):
                while not scheduler.done() and (
                        status := (await api.get(f"{RUNS}/changed"))["status"])["phase"] == "Running":
                    await asyncio.sleep(0.1)
            scheduler.cancel()
            await asyncio.gather(scheduler, return_exceptions=True)
            return status
    status = asyncio.run(finish())
    assert (status["phase"], status["steps"][1]["state"]) == ("Failed", "Failed")
    assert "the run was changed after its start" in status["message"]


@pytest.fixture(scope="module")
def federation(nova: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Yield a federation of two members whose scheduler receives alerts."""
    directory = tmp_path_factory.mktemp("recovery")
    (directory / "token").write_text(f"{TOKEN}\n")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with Federation(nova, members[:2], directory, f"--alerts-address={address}",
                    f"--alerts-token-file={directory / 'token'}") as federation:
        federation.address = address  # type: ignore[attr-defined]
        yield federation


def send(federation: Federation, body: Any, token: str = TOKEN, path: str = "/alerts") -> tuple[int, dict[str, Any]]:
    """Send a notification of Alertmanager. Return the status and the response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{federation.address}{path}", data, {"Authorization": f"Bearer {token}"})  # type: ignore[attr-defined]
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, {"error": error.read().decode()}


def notification(status: str = "firing", starts: str = "2026-11-29T10:00:00Z", **labels: str) -> dict[str, Any]:
    """Return a notification with one alert, in the format of Alertmanager's version 4."""
    entry = {"status": status, "labels": labels, "annotations": {"summary": "x"}, "startsAt": starts,
             "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://prometheus/graph", "fingerprint": "a1"}
    return {"version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": status, "receiver": "nova",
            "groupLabels": {}, "commonLabels": labels, "commonAnnotations": {}, "externalURL": "", "alerts": [entry]}


def test_alert_of_alertmanager_moves_a_workload_to_another_cluster(federation: Federation) -> None:
    """The plan of the facts: change objects, read a field, and use it; a Job runs in the new cluster in between."""
    nova, second = federation.nova, federation.members[1]
    nova.apply(deployment("db", 1, NAMESPACE, annotations={"nova.elotl.co/cluster": "member-1"}),
               config_map("proxy", conf="server member-1:27017"), config_map("address", host="10.9.8.7", port="27017"),
               plan("failover", {"app": "db"},
                    patch(target("deployments", "db", "apps/v1"), "metadata.annotations['nova.elotl.co/cluster']",
                          "member-2"),
                    job_step("member-2"),
                    read(target("configmaps", "address"), "data.host", "Host"),
                    read(target("configmaps", "address"), "data.port", "Port"),
                    patch(target("configmaps", "proxy"), "data",
                          {"conf": "server {{ .Values.Host }}:{{.Values.Port}} check"})))
    until(lambda: federation.members[0].get("deployments", "-n", NAMESPACE)["items"], 120)  # after earlier agents' term
    body = notification(alertname="Database Down", app="db", severity="critical")
    assert send(federation, body) == (200, {"received": 1, "created": 1})
    status = ended(nova, "failover", "database-down")
    assert (status["phase"], status.get("message")) == ("Succeeded", ""), status
    assert status["values"] == {"Host": "10.9.8.7", "Port": "27017"}
    assert [step["state"] for step in status["steps"]] == ["Succeeded"] * 5
    assert nova.get("configmap", "proxy", "-n", NAMESPACE)["data"] == {"conf": "server 10.9.8.7:27017 check"}
    until(lambda: [item["metadata"]["name"] for item in second.get("deployments", "-n", NAMESPACE)["items"]] == ["db"])
    run = runs(nova, "database-down")["failover"]["metadata"]["name"]
    copy = second.get("job", f"{run}-2", "-n", NAMESPACE)
    assert MARKER not in copy["metadata"]["annotations"]
    assert send(federation, body) == (200, {"received": 1, "created": 0})  # Alertmanager repeats alerts
    resolved = notification("resolved", alertname="Database Down", app="db", severity="critical")
    assert send(federation, resolved) == (200, {"received": 1, "created": 0})
    stored, = (item for item in nova.get("receivedalerts")["items"] if item["spec"]["labels"].get("app") == "db")
    assert stored["status"] == {"processed": True, "runs": [run], "message": ""}
    assert "nova.elotl.co/resolved" in stored["metadata"]["annotations"]
    assert len(runs(nova, "database-down")) == 1
    assert send(federation, notification(starts="later", alertname="Database Down", app="other"))[1]["created"] == 1


def test_receiver_refuses_bad_requests(federation: Federation) -> None:
    count = len(federation.nova.get("receivedalerts")["items"])
    good = notification(alertname="Bad", app="none")
    assert send(federation, good, token="wrong")[0] == 401
    assert send(federation, good, token="")[0] == 401
    assert send(federation, good, token="\u00fc" * 10)[0] == 401
    for body in (b"", b"{", b"null", b"[]", b"{}", b'{"alerts": [{}]}', b'{"alerts": [{"labels": {"a": 1}}]}',
                 b'{"alerts": [{"labels": {}}]}', b'{"alerts": [{"labels": {"a": "b"}, "status": "x"}]}', b"\xff\x00",
                 b"[" * 100_000, b'{"alerts": [{"labels": {"a": "\\ud800"}}]}',
                 json.dumps({"alerts": good["alerts"] * 1001}).encode()):
        assert send(federation, body)[0] == 400, body[:50]
    assert send(federation, b" " * (2 << 20))[0] == 413
    assert send(federation, good, path="/other")[0] == 404
    assert len(federation.nova.get("receivedalerts")["items"]) == count
    (federation.directory / "token").rename(federation.directory / "away")
    assert send(federation, good)[0] == 503
    (federation.directory / "away").rename(federation.directory / "token")
    assert send(federation, good) == (200, {"received": 1, "created": 1})


def test_failed_step_stops_the_run_with_its_reason(federation: Federation) -> None:
    nova = federation.nova
    nova.apply(config_map("kept", value="old"), config_map("values", a="b", namespace="nova-cluster-x"))
    change = patch(target("configmaps", "kept"), "data.value", "new")
    cases = {
        "missing": ([patch(target("configmaps", "nothing"), "data.a", "b"), change],
                    f"Step 1 (patch) failed: configmaps '{NAMESPACE}/nothing' does not exist"),
        "kind": ([patch(target("things", "x", "example.com/v1"), "spec.a", "b"), change],
                 "Step 1 (patch) failed: the control plane does not serve things of example.com/v1"),
        "field": ([read(target("configmaps", "values"), "data.c", "C"), change], "has no field 'data.c'"),
        "value": ([patch(target("configmaps", "kept"), "data.value", "{{ .Values.Unknown }}"), change],
                  "steps[0]: no earlier step has the outputKey Unknown."),
        "invalid": ([patch(target("configmaps", "values"), "data", "text"), change], "Step 1 (patch) failed: PATCH"),
        "protected": ([patch(target("secrets", "nova-cluster-init-kubeconfig", namespace="elotl"), "data.a", "b"),
                       change], "namespace 'elotl' are protected"),
        "indirect": ([read(target("configmaps", "values"), "data.namespace", "N"),
                      patch(target("configmaps", "x", namespace="{{ .Values.N }}"), "data.a", "b"), change],
                     "Step 2 (patch) failed: steps[1]: patch: objects of the namespace 'nova-cluster-x' are protected"),
        "late": ([job_step(deadlineSeconds=1), change], "did not complete within 1 s and was deleted"),
        "job": ([job_step("member-1", spec=job("x", pod_annotations={"lab/exit-code": "1"})["spec"]), change],
                "failed: ")}
    for name, (steps, _message) in cases.items():
        nova.apply(plan(f"fails-{name}", {"case": name}, *steps), alert(f"fails-{name}", {"case": name}))
    for name, (_steps, message) in cases.items():
        status = ended(nova, f"fails-{name}", f"fails-{name}")
        assert status["phase"] == "Failed", name
        assert message in status["message"], name
        assert "Succeeded" not in [step["state"] for step in status.get("steps", ())[-1:]], name
    assert nova.get("configmap", "kept", "-n", NAMESPACE)["data"] == {"value": "old"}
    assert not [item for item in nova.get("jobs", "-n", NAMESPACE)["items"] if "-late-" in item["metadata"]["name"]]
    until(lambda: [event for event in nova.get("events")["items"] if event["reason"] == "InvalidPlan"
                   and event["involvedObject"]["name"] == "fails-protected"])


def test_alert_without_a_matching_plan_is_processed(federation: Federation) -> None:
    federation.nova.apply(alert("lonely", {"app": "unknown"}))
    status = until(lambda: federation.nova.get("receivedalert", "lonely").get("status"))
    assert status == {"processed": True, "runs": [], "message": "No recovery plan matches the labels of the alert."}


@pytest.mark.parametrize("spec", [
    {"alertLabels": {}, "steps": [job_step()]}, {"alertLabels": {"a": "b"}, "steps": []}, {"alertLabels": {"a": "b"}},
    {"alertLabels": {"a": "b"}, "steps": [{"type": "delete"}]},
    {"alertLabels": {"a": "b"}, "steps": [{"type": "patch", "patch": {}}]},
    {"alertLabels": {"a": 1}, "steps": [job_step()]}])
def test_schema_refuses_invalid_plans(nova: Cluster, spec: dict[str, Any]) -> None:
    body = json.dumps({**plan("bad", {}), "spec": spec})
    assert "is invalid" in nova.kubectl("create", "--validate=false", "-f", "-", stdin=body, check=False)
