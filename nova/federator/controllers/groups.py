"""ScheduleGroup objects, which show users the groups that policies form by a label."""

import hashlib

from nova.federator.api import times
from nova.federator.api.names import MATCHING_POLICY, POLICY_GROUP, TARGET, VERSION, label_value
from nova.federator.api.types import Decision, Group, Policy
from nova.federator.kube.client import Api, Object
from nova.federator.kube.informer import Informer
from nova.federator.store.schedules import digest_of

GROUPS = f"/apis/{POLICY_GROUP}/{VERSION}/schedulegroups"


def group_name(policy: str, label: str) -> str:
    """Return the name of a ScheduleGroup: the policy and eight hexadecimal digits."""
    return f"{policy[:244].rstrip('.-')}-{hashlib.sha256(f'{policy}/{label}'.encode()).hexdigest()[:8]}"


class ScheduleGroups:
    """Keeps ScheduleGroup objects equal to the groups that policies form by a label."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.objects: Informer[Object] = Informer(api, GROUPS, lambda obj: obj)

    async def write(self, group: Group, policy: Policy, label: str, decision: Decision) -> None:
        """Create the object of a group, or replace it if it differs."""
        name = group_name(policy.name, label)
        labels = {policy.group_by: label, MATCHING_POLICY: label_value(policy.name)}
        if len(decision.targets) == 1:
            labels[TARGET] = label_value(next(iter(decision.targets)))
        refs = [{"group": item.ref.group, "version": item.ref.version, "kind": item.ref.kind,
                 "namespace": item.ref.namespace, "name": item.ref.name} for item in group.items]
        content = {"policy": {"name": policy.name, "namespace": ""}, "objectRefs": refs,
                   "scheduled": bool(decision.targets)}
        old = self.objects.objects.get(name)
        if old is not None and old["metadata"].get("labels") == labels and digest_of(content) == digest_of(
                {field: old.get(field) for field in content}):
            return
        stamp = times.now()
        body = {"apiVersion": f"{POLICY_GROUP}/{VERSION}", "kind": "ScheduleGroup", **content,
                "metadata": {"name": name, "labels": labels}, "lastStatusUpdate": stamp}
        if old is None:
            await self.api.create(GROUPS, body)
        else:
            body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]  # type: ignore[index]
            await self.api.replace(f"{GROUPS}/{name}", body)

    async def remove(self, group: str) -> None:
        """Delete the ScheduleGroup object of a group without members, if it exists."""
        kind, _slash, rest = group.partition("/")
        name = group_name(*rest.partition("/")[::2])
        if kind == "ScheduleGroup" and name in self.objects.objects:
            await self.api.remove(f"{GROUPS}/{name}")
