"""Recovery: an alert starts the plans whose labels it has, and the steps of each run are executed in order, once.

A step is recorded as running before its effect, and as succeeded after its effect. A patch writes the annotation
RECOVERED_BY together with the field, so a scheduler that continues a run can tell if the patch was applied.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api import objects, times
from nova.federator.api.keyed_queue import KeyedQueue
from nova.federator.api.names import RECOVERED_BY, RECOVERY_GROUP, VERSION
from nova.federator.api.objects import Kind
from nova.federator.api.quantity import excerpt
from nova.federator.api.types import Ref
from nova.federator.controllers.events import Recorder
from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.informer import Informer, start_optional
from nova.federator.scheduling import recovery_steps
from nova.federator.scheduling.recovery_steps import Action, Job, Patch, ReadField

LOG = logging.getLogger(__name__)
API_VERSION = f"{RECOVERY_GROUP}/{VERSION}"
ALERTS, PLANS, RUNS = (f"/apis/{API_VERSION}/{name}" for name in ("receivedalerts", "recoveryplans", "recoveryruns"))
RESOLVED = "nova.elotl.co/resolved"  # annotation of an alert that has ended: the time of its end
_WORKERS = 16
_POLL = 2.0  # seconds between two reads of a Job
_HELD = 0.5  # seconds after which a patch is tried again if another run is patching the same object
_LONGEST_DELAY = 30.0  # longest delay before a failed request is tried again, in seconds
_CONFLICTS = 5  # tries of a patch that conflicts with changes by other clients, before a delay
_PERMANENT = (400, 403, 404, 405, 413, 415, 422)  # HTTP statuses of requests that fail again when they are repeated
_KINDS = ("ReceivedAlert", "RecoveryPlan", "RecoveryRun")
_PRUNE_INTERVAL = 60.0  # seconds between two deletions of old alerts
_HISTORY = 200  # number of resolved alerts that are kept with their runs; older ones are deleted
_JOB = Kind("batch", "v1", "Job", "jobs", True)


class Recovery:
    """The alerts, plans and runs of a control plane."""

    def __init__(self, api: Api, recorder: Recorder) -> None:
        self.api, self.recorder = api, recorder
        self.alerts: Informer[Object] = Informer(api, ALERTS, lambda obj: obj, self._alert_changed)
        self.plans: Informer[Object] = Informer(api, PLANS, lambda obj: obj, self._plan_changed)
        self.runs: Informer[Object] = Informer(api, RUNS, lambda obj: obj, self._run_changed)
        self._queue = KeyedQueue()  # of "alert/NAME" and "run/NAME"
        self.failures: dict[str, int] = {}
        self._holders: dict[str, str] = {}  # object -> run that patches it, until the patch is recorded
        self._deadlines: dict[str, float] = {}  # uid of a Job -> monotonic time at which its step fails

    async def run(self) -> None:
        """Start and execute runs until cancelled. Waits until the custom resources are installed."""
        async with asyncio.TaskGroup() as tasks:
            await start_optional(self.api, API_VERSION, _KINDS, (self.alerts, self.plans, self.runs), tasks)
            self._hold_interrupted()
            for _number in range(_WORKERS):
                tasks.create_task(self._work())
            tasks.create_task(self._prune())

    def _alert_changed(self, key: str, new: Object | None, _old: Object | None) -> None:
        if new is not None and not _status(new).get("processed"):
            self._queue.put(f"alert/{key}")

    def _plan_changed(self, key: str, new: Object | None, _old: Object | None) -> None:
        if new is None:
            return
        try:
            recovery_steps.check(new["spec"]["steps"])
        except Invalid as error:
            self._emit(new, "RecoveryPlan", "InvalidPlan", f"Runs of the plan fail: {error.message}", warning=True)
            LOG.warning("RecoveryPlan %s is invalid, its runs fail until it is corrected: %s", key, error.message)

    def _run_changed(self, key: str, new: Object | None, _old: Object | None) -> None:
        if new is None:
            self._release(key)
        elif not _ended(new):
            self._queue.put(f"run/{key}")

    def _hold_interrupted(self) -> None:
        """Reserve the objects of patches that an earlier leader has begun, until their outcome is recorded."""
        for name, run in self.runs.objects.items():
            steps = _status(run).get("steps") or []
            number = next((index for index, step in enumerate(steps) if step["state"] == "Running"), None)
            unchanged = _status(run).get("generation") == run["metadata"]["generation"]  # else the run fails
            if number is not None and unchanged and not _ended(run):
                try:
                    action = _action(run, number)
                except Invalid:
                    continue
                if isinstance(action, Patch):
                    self._holders.setdefault(_target_key(action), name)

    def _release(self, name: str) -> None:
        self._holders = {target: holder for target, holder in self._holders.items() if holder != name}

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            key = await self._queue.get()
            kind, _slash, name = key.partition("/")
            delay: float | None = None
            try:
                delay = await (self._advance(name) if kind == "run" else self._start_runs(name))
                self.failures.pop(key, None)
            except ApiError as error:
                failures = self.failures[key] = self.failures.get(key, 0) + 1
                delay = min(0.25 * 2 ** min(failures, 10), _LONGEST_DELAY)
                LOG.log(logging.WARNING if failures in (4, 10) else logging.DEBUG,
                        "Processing recovery object %s failed %d times, retrying: %s", key, failures, error)
            except Exception:  # a malformed object must not stop the processing of other objects
                delay = _LONGEST_DELAY
                LOG.exception("Unexpected error in recovery object %s, retrying in %.0f s", key, delay)
            finally:
                again = self._queue.done(key)
            if delay is not None:
                loop.call_later(delay, self._queue.put, key)
            elif again:
                self._queue.put(key)

    async def _start_runs(self, name: str) -> None:
        """Create the runs of an alert, then mark the alert as processed. Plans are read from the server, because the
        watch of plans may be behind the watch of alerts."""
        alert = self.alerts.objects.get(name)
        if alert is None or _status(alert).get("processed") or "deletionTimestamp" in alert["metadata"]:
            return
        names, refused = [], None
        for plan in (await self.api.list(PLANS))["items"]:
            if recovery_steps.matches(plan, alert) and "deletionTimestamp" not in plan["metadata"]:
                run = _run_of(plan, alert)
                names.append(run["metadata"]["name"])
                try:
                    if await self.api.ensure(RUNS, run):
                        LOG.info("Alert %s starts recovery plan %s: run %s", name, plan["metadata"]["name"], names[-1])
                except ApiError as error:  # a refused run must not prevent the runs of other plans
                    refused = error
        if refused:
            raise refused
        message = "" if names else "No recovery plan matches the labels of the alert."
        await self.api.patch(f"{ALERTS}/{name}/status", {
            "metadata": {"uid": alert["metadata"]["uid"]},
            "status": {"processed": True, "runs": sorted(names), "message": message}})

    async def _advance(self, name: str) -> float | None:
        """Execute a run until it ends or waits. Return the seconds to wait, or None after its end."""
        while True:
            run = self.runs.objects.get(name)
            if run is None or _ended(run):
                return None
            status, steps = _status(run), run["spec"]["steps"]
            states = [step["state"] for step in status.get("steps") or ()]
            number = states.index("Running") if "Running" in states else states.count("Succeeded")
            try:
                if not status:
                    recovery_steps.check(steps)
                    await self._write(run, {
                        "phase": "Running", "generation": run["metadata"]["generation"], "startTime": times.now(),
                        "message": "", "steps": [{"type": step["type"], "title": step.get("title", ""),
                                                  "state": "Pending"} for step in steps]})
                    continue
                if status.get("generation") != run["metadata"]["generation"]:
                    raise Invalid("the run was changed after its start")
                action = _action(run, number)
                if isinstance(action, Patch) and self._holders.setdefault(_target_key(action), name) != name:
                    return _HELD
                if states[number] == "Pending":
                    await self._write_step(run, number, state="Running", startTime=times.now())
                    continue
                values = await self._execute(run, number, action)
                if values is None:
                    return _POLL
            except Invalid as error:
                await self._fail(run, number, error.message)
                return None
            await self._write_step(run, number, values, state="Succeeded", completionTime=times.now())
            self._release(name)

    async def _execute(self, run: Object, number: int, action: Action) -> dict[str, Any] | None:
        """Execute a step that is recorded as running. Return the values of the run if the step read one, otherwise an
        empty map, or None if a Job has not ended. Raises Invalid if the step fails, ApiError if it must be tried
        again."""
        marker = f"{run['metadata']['name']}/{number + 1}/{run['metadata']['uid']}"
        try:
            match action:
                case Patch():
                    await self._patch(run, action, marker)
                    return {}
                case ReadField():
                    obj = await self._read(await self._path(action), action)
                    value = recovery_steps.read_field(obj, action.fieldPath)
                    return recovery_steps.add_value(_status(run).get("values") or {}, action.outputKey, value)
                case Job():
                    return await self._run_job(run, number, action, marker)
        except ApiError as error:
            if error.status not in _PERMANENT:
                raise
            raise Invalid(error.message) from None

    async def _patch(self, run: Object, action: Patch, marker: str) -> None:
        """Apply a patch unless it was applied already. The object is read before the run is confirmed, and patched only
        if it has not changed since: no other scheduler can have applied and recorded this step in between."""
        path = await self._path(action)
        for _attempt in range(_CONFLICTS):
            obj = await self._read(path, action)
            if (obj["metadata"].get("annotations") or {}).get(RECOVERED_BY) == marker:
                return
            body = recovery_steps.merge_patch(obj, action)
            metadata = body.setdefault("metadata", {})
            metadata["resourceVersion"] = obj["metadata"]["resourceVersion"]
            metadata["annotations"] = {**(metadata.get("annotations") or {}), RECOVERED_BY: marker}
            current = await self.api.get(f"{RUNS}/{run['metadata']['name']}")
            if current["metadata"]["resourceVersion"] != run["metadata"]["resourceVersion"]:
                break
            try:
                await self.api.patch(path, body)
            except ApiError as error:
                if not error.conflict:
                    raise
                continue
            return
        raise ApiError("the object or the run changed meanwhile", 409)

    async def _run_job(self, run: Object, number: int, action: Job, marker: str) -> dict[str, Any] | None:
        """Create the Job of a step unless it exists. Return None while it runs, and an empty map once it completed."""
        name, recorded = f"{run['metadata']['name']}-{number + 1}", _status(run)["steps"][number].get("uid")
        path = _JOB.path(action.namespace, name)
        job = await self.api.find(path)
        if job is None:
            if recorded:
                raise Invalid(f"Job {action.namespace}/{name} was deleted before it ended")
            annotations = {**action.annotations, RECOVERED_BY: marker}
            job = await self.api.create(_JOB.path(action.namespace), {
                "apiVersion": "batch/v1", "kind": "Job", "spec": action.spec,
                "metadata": {"name": name, "labels": action.labels, "annotations": annotations}})
        if (job["metadata"].get("annotations") or {}).get(RECOVERED_BY) != marker:
            raise Invalid(f"Job {action.namespace}/{name} exists and does not belong to this run")
        if not recorded:
            await self._write_step(run, number, uid=job["metadata"]["uid"])
            return None
        status = job.get("status")
        deadline = self._deadlines.setdefault(job["metadata"]["uid"], time.monotonic() + action.deadlineSeconds)
        problem = ""
        if objects.holds(status, "Failed"):
            condition = objects.conditions_of(status)["Failed"]
            problem = f"failed: {condition.get('message') or condition.get('reason') or 'no reason reported'}"
        elif objects.holds(status, "Complete"):
            del self._deadlines[job["metadata"]["uid"]]
            return {}
        elif time.monotonic() >= deadline:
            await self.api.remove(path, uid=job["metadata"]["uid"])
            problem = f"did not complete within {action.deadlineSeconds} s and was deleted"
        if problem:
            del self._deadlines[job["metadata"]["uid"]]
            raise Invalid(f"Job {action.namespace}/{name} {problem}")
        return None

    async def _path(self, action: Patch | ReadField) -> str:
        """Return the path of the object of a step. Raises Invalid if the control plane does not serve its kind."""
        kinds = await self.api.discover(action.apiVersion)
        kind = next((kind for kind in kinds.values() if kind.plural == action.resource), None)
        if kind is None:
            raise Invalid(f"the control plane does not serve {action.resource} of {action.apiVersion}")
        if kind.namespaced != bool(action.namespace):
            raise Invalid(f"namespace: {'required' if kind.namespaced else 'not allowed'} for {action.resource}")
        return kind.path(action.namespace, action.name)

    async def _read(self, path: str, action: Patch | ReadField) -> Object:
        obj = await self.api.find(path)
        if obj is None:
            name = f"{action.namespace}/{action.name}".lstrip("/")
            raise Invalid(f"{action.resource} {excerpt(name)} does not exist")
        return obj

    async def _write_step(self, run: Object, number: int, values: Mapping[str, Any] | None = None,
                          **fields: str) -> None:
        """Write fields of a step; after the last step, also the end of the run."""
        status = _status(run)
        steps = [{**step, **fields} if index == number else step for index, step in enumerate(status["steps"])]
        changes: dict[str, Any] = {"steps": steps}
        if values:
            changes["values"] = values
        if fields.get("state") == "Succeeded" and number == len(steps) - 1:
            changes |= {"phase": "Succeeded", "completionTime": times.now()}
        await self._write(run, changes)
        if "phase" in changes:
            self._emit(run, "RecoveryRun", "RecoverySucceeded", f"All {len(steps)} steps succeeded.")
            LOG.info("Recovery run %s succeeded", run["metadata"]["name"])

    async def _fail(self, run: Object, number: int, reason: str) -> None:
        run = self.runs.objects.get(run["metadata"]["name"], run)
        status, now = _status(run), times.now()
        steps = [dict(step) for step in status.get("steps") or ()]
        message = reason
        if number < len(steps):
            steps[number] |= {"state": "Failed", "message": reason[:1000], "completionTime": now}
            message = f"Step {number + 1} ({steps[number].get('title') or steps[number]['type']}) failed: {reason}"
        await self._write(run, {"phase": "Failed", "message": message[:1000], "completionTime": now,
                                "startTime": status.get("startTime") or now, "steps": steps})
        self._release(run["metadata"]["name"])
        self._emit(run, "RecoveryRun", "RecoveryFailed", message, warning=True)
        LOG.error("Recovery run %s failed: %s", run["metadata"]["name"], message)

    async def _write(self, run: Object, status: Mapping[str, Any]) -> None:
        """Write fields of the status of a run, if no other scheduler has written since."""
        metadata = {"resourceVersion": run["metadata"]["resourceVersion"], "uid": run["metadata"]["uid"]}
        self.runs.put(await self.api.patch(f"{RUNS}/{run['metadata']['name']}/status", {
            "metadata": metadata, "status": status}))

    def _emit(self, obj: Object, kind: str, reason: str, message: str, warning: bool = False) -> None:
        metadata = obj["metadata"]
        self.recorder.emit(Ref(RECOVERY_GROUP, VERSION, kind, "", metadata["name"]), metadata.get("uid", ""), reason,
                           message, "Warning" if warning else "Normal")

    async def _prune(self) -> None:
        """Delete the oldest resolved alerts whose runs have ended; the garbage collector deletes their runs."""
        while True:
            await asyncio.sleep(_PRUNE_INTERVAL)
            active = {str(run["spec"]["alert"]) for run in self.runs.objects.values() if not _ended(run)}
            resolved = sorted((annotations[RESOLVED], name) for name, alert in self.alerts.objects.items()
                              if RESOLVED in (annotations := alert["metadata"].get("annotations") or {})
                              and _status(alert).get("processed") and name not in active)
            for _at, name in resolved[:-_HISTORY]:
                try:
                    await self.api.remove(f"{ALERTS}/{name}")
                except ApiError as error:
                    LOG.warning("Cannot delete the resolved alert %s, retrying: %s", name, error)


def _status(obj: Object) -> dict[str, Any]:
    return obj.get("status") or {}


def _ended(run: Object) -> bool:
    return _status(run).get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in run["metadata"]


def _action(run: Object, number: int) -> Action:
    """Return a step of a run with the values read so far. Raises Invalid."""
    return recovery_steps.parse(run["spec"]["steps"][number], _status(run).get("values") or {}, f"steps[{number}]")


def _target_key(action: Patch) -> str:
    return "/".join((action.apiVersion.rpartition("/")[0], action.resource, action.namespace, action.name))


def _run_of(plan: Object, alert: Object) -> dict[str, Any]:
    """Return the run of a plan for an alert, with a copy of the steps: later changes of the plan do not affect it."""
    metadata, plan_name = alert["metadata"], str(plan["metadata"]["name"])
    digest = hashlib.sha256(f"{metadata['uid']}/{plan['metadata']['uid']}".encode()).hexdigest()[:16]
    return {"apiVersion": API_VERSION, "kind": "RecoveryRun",
            "metadata": {"name": f"{plan_name[:36].replace('.', '-').rstrip('-')}-{digest}", "ownerReferences": [
                {"apiVersion": API_VERSION, "kind": "ReceivedAlert", "name": metadata["name"],
                 "uid": metadata["uid"]}]},
            "spec": {"plan": plan_name, "alert": metadata["name"], "steps": plan["spec"]["steps"]}}
