"""The users' objects that may be placed, the policies, and the groups that follow from both."""

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import zstandard

from nova.common.errors import Invalid
from nova.federator.api import objects
from nova.federator.api.names import (
    BACKPROPAGATED,
    NAME_LABEL,
    PIN,
    POLICY_GROUP,
    RECOVERED_BY,
    SPREAD_ONTO,
    TARGET,
    VERSION,
)
from nova.federator.api.selectors import LabelIndex
from nova.federator.api.types import Group, Item, Policy, Ref
from nova.federator.kube.client import TRUNCATED, Api, Object
from nova.federator.kube.informer import Informer
from nova.federator.scheduling import policy as policies
from nova.federator.store import schedules

LOG = logging.getLogger(__name__)
_compressor = zstandard.ZstdCompressor(level=3)
POLICIES = f"/apis/{POLICY_GROUP}/{VERSION}/schedulepolicies"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
                  "ownerReferences", "finalizers", "deletionTimestamp", "deletionGracePeriodSeconds")
# Namespaces of the control plane itself: their objects are never placed.
_OWN_NAMESPACES = ("kube-", "nova-cluster-")


class Template(msgspec.Struct, frozen=True):
    """A user's object. ``body``: compressed JSON of the manifest for clusters, before shares and overrides.
    ``target``: its label target-cluster. ``status``: digest of its status, to write only changes."""

    item: Item
    uid: str
    body: bytes
    digest: str
    target: str
    status: str
    pin: str = ""
    spread_onto: str = ""
    deleting: bool = False
    problem: str = ""  # the reason why the object cannot be placed
    generation: int = 0
    status_fields: tuple[str, ...] = ()

    def manifest(self) -> dict[str, Any]:
        return msgspec.json.decode(zstandard.decompress(self.body), type=dict[str, Any])


class Placement(msgspec.Struct, frozen=True):
    """The group of an object, with its policy. ``others``: further policies that match and are ignored."""

    group: str
    policy: Policy | None
    others: tuple[str, ...] = ()
    label: str = ""  # value of the policy's groupBy label
    problem: str = ""  # the reason why the annotations are invalid


class Catalog:
    """The templates by key (:attr:`Ref.key`), and their groups. ``changed``: called with a group to place it again.
    ``refused``: called with name, uid and problem of an invalid policy."""

    def __init__(self, changed: Callable[[str], None],
                 refused: Callable[[str, str, str], None] = lambda _name, _uid, _problem: None) -> None:
        self.changed, self.refused = changed, refused
        self.templates: dict[str, Template] = {}
        # Called with the name of a CustomResourceDefinition and its kind, or None if it was deleted.
        self.definition_changed: Callable[[str, objects.Kind | None], None] = lambda _name, _kind: None
        self.placements: dict[str, Placement] = {}  # key of a template -> its group
        self.members: dict[str, set[str]] = {}  # group -> keys of templates
        self.frozen: dict[str, str] = {}  # key of a template whose policy is missing -> the group of its schedules
        self.policies = policies.PolicySet()
        self.invalid_policies: dict[str, str] = {}  # name -> problem
        self.kinds: dict[tuple[str, str], objects.Kind] = {}
        self.namespace_labels: dict[str, dict[str, str]] = {}
        self._in_namespace: dict[str, set[str]] = {}
        self._labels = LabelIndex()
        self._by_policy: dict[str, set[str]] = {}  # name of a policy -> keys of the templates that it places

    def informers(self, api: Api, kinds: Iterable[objects.Kind]) -> dict[str, Informer[Any]]:
        """Return informers that fill the catalog: of each kind, and of the policies."""
        result: dict[str, Informer[Any]] = {
            "schedulepolicies": Informer(api, POLICIES, lambda obj: obj, self._policy_changed)}
        for kind in kinds:
            result[f"{kind.plural}.{kind.group}"] = self.informer(api, kind)
        return result

    def informer(self, api: Api, kind: objects.Kind) -> Informer[Template]:
        """Return an informer that fills the catalog with the objects of a kind."""
        self.kinds[kind.group, kind.kind] = kind
        return Informer(api, kind.path(), template_of, self._template_changed)

    def kind(self, ref: Ref) -> objects.Kind:
        """Return the kind of an object as the control plane serves it."""
        return self.kinds[ref.group, ref.kind]

    def group(self, name: str) -> Group:
        """Return a group with its placeable members, in the order in which they are applied."""
        templates = [self.templates[key] for key in sorted(self.members.get(name, ()))]
        items = sorted((template.item for template in templates if not template.problem and not template.deleting),
                       key=lambda item: (objects.apply_order(item.ref), item.ref))
        policy = self.policy_of(name)
        return Group(key=name, items=tuple(items), policy=policy.name if policy else "")

    def policy_of(self, group: str) -> Policy | None:
        """Return the policy of a group, or None if it has no members or its members are not selected any more."""
        for key in self.members.get(group, ()):
            return self.placements[key].policy
        return None

    def belongs(self, ref: Ref, group: str) -> bool:
        """Return True if an object is in a group, or was in the group when its policy was deleted."""
        placement = self.placements.get(ref.key)
        return placement.group == group if placement else group == ref.key or group.startswith("ScheduleGroup/")

    def label_of(self, group: str) -> str:
        """Return the value of the policy's groupBy label, or an empty text for a group of one object."""
        return next((self.placements[key].label for key in self.members.get(group, ())), "")

    def set_target(self, key: str, target: str) -> None:
        """Record a label target-cluster that was written, before the watch reports it."""
        if template := self.templates.get(key):
            self.templates[key] = msgspec.structs.replace(template, target=target)

    def _template_changed(self, _key: str, new: Template | None, old: Template | None) -> None:
        template = new or old
        if template is None:
            return
        ref = template.item.ref
        if ref.kind == "Namespace" and not ref.group:
            self._namespace_changed(ref.name, new)
        elif ref.kind == "CustomResourceDefinition":
            self.definition_changed(ref.name, objects.custom_kind(new.manifest()) if new else None)
        if new is None:
            del self.templates[ref.key]
            self._in_namespace.get(ref.namespace, set()).discard(ref.key)
            self._labels.remove(ref.key)
        else:
            if old is not None and msgspec.structs.replace(old, status=new.status, target=new.target,
                                                           status_fields=new.status_fields) == new:
                self.templates[ref.key] = new
                return  # no new decision: only fields that Nova writes have changed
            self.templates[ref.key] = new
            self._in_namespace.setdefault(ref.namespace, set()).add(ref.key)
            self._labels.put(ref.key, new.item.labels)
        self._assign(ref.key)
        if placement := self.placements.get(ref.key):
            self.changed(placement.group)
        if new is None and (group := self.frozen.pop(ref.key, "")):
            self.changed(group)

    def _namespace_changed(self, name: str, new: Template | None) -> None:
        before = self.namespace_labels.get(name)
        if new is None:
            self.namespace_labels.pop(name, None)
        else:
            self.namespace_labels[name] = {**new.item.labels, NAME_LABEL: name}
        if before != self.namespace_labels.get(name):
            for key in list(self._in_namespace.get(name, ())):
                self._assign(key)

    def change_policy(self, obj: Object) -> None:
        """Act as if a policy was created or changed, for plans. Raises Invalid for an invalid policy."""
        policies.parse(obj)
        name = str(obj["metadata"]["name"])
        old = self.policies.get(name)
        created = {"creationTimestamp": old.created} if old else {}
        self._policy_changed(name, {**obj, "metadata": {**obj["metadata"], **created}}, None)

    def _policy_changed(self, key: str, new: Object | None, _old: Object | None) -> None:
        parsed = None
        self.invalid_policies.pop(key, None)
        if new is not None:
            try:
                parsed = policies.parse(new)
            except Invalid as error:
                LOG.warning("SchedulePolicy %s is not applied until it is corrected: %s", key, error.message)
                self.refused(key, str(new["metadata"].get("uid", "")), error.message)
                self.invalid_policies[key] = error.message
        affected = set(self._by_policy.get(key, ()))
        for policy in (self.policies.get(key), parsed):
            if policy is not None:
                affected |= {item_key for item_key in self._labels.candidates(policy.labels) if policies.selects(
                    policy, item := self.templates[item_key].item, self.namespace_labels.get(item.ref.namespace, {}))}
        self.policies.remove(key)
        if parsed is not None:
            self.policies.add(parsed)
        for item_key in affected:
            before = self.placements.get(item_key)
            self._assign(item_key)
            after = self.placements.get(item_key)
            if after is not None and before is not None and after.group == before.group:
                self.changed(after.group)

    def _assign(self, key: str) -> None:
        """Compute the group of a template again, and report its old and its new group if they differ."""
        template, before = self.templates.get(key), self.placements.get(key)
        after = None if template is None else self._placement(template)
        if after == before:
            return
        if before is not None:
            self.members[before.group].discard(key)
            if not self.members[before.group]:
                del self.members[before.group]
            del self.placements[key]
            if before.policy is not None:
                self._by_policy[before.policy.name].discard(key)
                if not self._by_policy[before.policy.name]:
                    del self._by_policy[before.policy.name]
        if after is not None:
            self.placements[key] = after
            if after.policy is not None:
                self._by_policy.setdefault(after.policy.name, set()).add(key)
            self.members.setdefault(after.group, set()).add(key)
        for group in {placement.group for placement in (before, after) if placement is not None}:
            self.changed(group)

    def _placement(self, template: Template) -> Placement | None:
        """Return the group of a template. Groups of a deleted policy stay frozen: see Placer."""
        item = template.item
        policy, others = self.policies.match(item, self.namespace_labels.get(item.ref.namespace, {}))
        if template.pin or template.spread_onto:
            try:
                listed = policies.of_annotations(template.pin, template.spread_onto)
            except Invalid as error:
                return Placement(item.ref.key, policies.nowhere(), problem=error.message)
            if policy is not None:  # annotations choose clusters, but only policies set the failover
                listed = msgspec.structs.replace(listed, failover=policy.failover, fence_after=policy.fence_after)
            return Placement(item.ref.key, listed)
        if policy is None:
            return None
        label = item.labels.get(policy.group_by, "") if policy.group_by else ""
        group = f"ScheduleGroup/{policy.name}/{label}" if label else item.ref.key
        return Placement(group, policy, tuple(others), label)


def template_of(obj: Object) -> Template | None:
    """Return the template of a user's object, or None for an object that is never placed: it belongs to another object
    or to the control plane, or backpropagation has created it."""
    metadata: Mapping[str, Any] = obj["metadata"]
    namespace, annotations = metadata.get("namespace") or "", metadata.get("annotations") or {}
    labels = metadata.get("labels") or {}
    own = (namespace or metadata["name"]).startswith(_OWN_NAMESPACES) or objects.internal(obj)
    if own or metadata.get("ownerReferences") or BACKPROPAGATED in labels:
        return None
    manifest = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    manifest["metadata"] = {key: value for key, value in metadata.items() if key not in _SERVER_FIELDS}
    manifest["metadata"]["labels"] = {key: value for key, value in labels.items() if key != TARGET}
    manifest["metadata"]["annotations"] = {key: value for key, value in annotations.items()
                                           if key not in (_LAST_APPLIED, PIN, SPREAD_ONTO, RECOVERED_BY)}
    if obj.get("kind") in objects.NOT_PORTABLE:
        manifest = objects.portable(msgspec.json.decode(msgspec.json.encode(manifest)), metadata.get("managedFields"))
    body = msgspec.json.encode(manifest, order="sorted")
    problem = ""
    try:
        item = objects.item_of(obj)
    except Invalid as error:
        problem = error.message
        group, _slash, version = str(obj.get("apiVersion")).rpartition("/")
        item = Item(Ref(group, version, str(obj.get("kind")), namespace, metadata["name"]), labels=labels)
    if TRUNCATED.encode() in body:
        problem = "The object is nested too deeply."
    return Template(  # the body is copied, because the compressor's result occupies more memory than its bytes
        item=item, uid=sys.intern(str(metadata.get("uid", ""))), body=memoryview(_compressor.compress(body)).tobytes(),
        digest=sys.intern(hashlib.sha256(body).hexdigest()[:20]), target=sys.intern(str(labels.get(TARGET, ""))),
        status=sys.intern(schedules.digest_of(obj.get("status") or {})), pin=str(annotations.get(PIN) or ""),
        spread_onto=str(annotations.get(SPREAD_ONTO) or ""), deleting="deletionTimestamp" in metadata,
        problem=problem, generation=int(metadata.get("generation") or 0),
        status_fields=tuple(obj.get("status") or ()))
