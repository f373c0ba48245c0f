"""Allocations of consumers, usages of projects, and allocation candidates."""

import collections
from typing import Any

from nova import exception
from nova.objects.hosts.placement import Candidate, ConsumerView, ProviderView
from nova.placement import bodies, errors, queries
from nova.placement.providers import requested_provider
from nova.placement.request import Answer, Request

_ALL = "all"


# --- allocations -------------------------------------------------------------------------------
def of_provider(req: Request) -> Answer:
    provider = requested_provider(req)
    return req.shown({"resource_provider_generation": provider.generation, "allocations": {
        consumer.uuid: {"resources": consumer.allocations[provider.uuid],
                        **({"consumer_generation": consumer.generation} if req.version >= 28 else {})}
        for consumer in req.conductor.consumers_of(req.ctx, provider.uuid)}})


def show(req: Request) -> Answer:
    consumer = req.conductor.get_consumer(req.ctx, bodies.uuid_of(req.params["uuid"]) or req.params["uuid"])
    return req.shown({"allocations": {}} if consumer is None else _consumer(consumer, req.version))


def _consumer(consumer: ConsumerView, version: int) -> dict[str, Any]:
    body: dict[str, Any] = {"allocations": {
        uuid: {"resources": resources, "generation": consumer.providers.get(uuid, 0)}
        for uuid, resources in consumer.allocations.items()}}
    if version >= 12:
        body.update(project_id=consumer.project_id, user_id=consumer.user_id)
    if version >= 28:
        body["consumer_generation"] = consumer.generation
    if version >= 38:
        body["consumer_type"] = consumer.type
    return body


def replace(req: Request) -> Answer:
    req.conductor.allocate(req.ctx, [bodies.consumer_change(req.params["uuid"], req.body, req.version)])
    return Answer(None, 204)


def replace_many(req: Request) -> Answer:
    consumers = bodies.parse(req.body, dict[bodies.Uuid, Any])
    changes = [bodies.consumer_change(uuid, body, req.version, many=True) for uuid, body in consumers.items()]
    if not changes or len({change.uuid for change in changes}) != len(changes):
        raise exception.Invalid("JSON does not validate: $ must name one or more different consumers.")
    req.conductor.allocate(req.ctx, changes)
    return Answer(None, 204)


def delete(req: Request) -> Answer:
    req.conductor.deallocate(req.ctx, bodies.uuid_of(req.params["uuid"]) or req.params["uuid"])
    return Answer(None, 204)


def reshape(req: Request) -> Answer:
    raise exception.PlacementConflict(
        "POST /reshaper is not supported: nova-compute moves inventories and claims between its own providers. Change "
        "external providers with PUT /resource_providers/{uuid}/inventories and POST /allocations.")


# --- usages ------------------------------------------------------------------------------------
def usages(req: Request) -> Answer:
    values = queries.parameters(req.query, {"project_id", "user_id", *(["consumer_type"] if req.version >= 38 else [])})
    for name, given in values.items():
        if not 1 <= len(given[0]) <= 255:
            raise errors.BadValue(f"Invalid query string parameters: {name} must have 1 to 255 characters.")
    if "project_id" not in values:
        raise errors.MissingValue("Invalid query string parameters: project_id is required.")
    project_id = values["project_id"][0]
    req.authorize("placement:usages", project_id)
    by_type = req.conductor.usages(req.ctx, project_id, values.get("user_id", [None])[0])
    wanted = values.get("consumer_type", [None])[0]
    if req.version < 38 or wanted == _ALL:
        total: collections.Counter[str] = collections.Counter()
        for usage in by_type.values():
            total.update(usage.resources)
        if req.version < 38:
            return req.shown({"usages": dict(sorted(total.items()))})
        count = sum(usage.consumers for usage in by_type.values())
        return req.shown({"usages": {_ALL: {**total, "consumer_count": count}} if count else {}})
    return req.shown({"usages": {name: {**usage.resources, "consumer_count": usage.consumers}
                                 for name, usage in sorted(by_type.items()) if wanted in (None, name)}})


# --- allocation candidates -----------------------------------------------------------------------
def candidates(req: Request) -> Answer:
    request = queries.candidate_request(req.query, req.version)
    result = req.conductor.find_candidates(req.ctx, request)
    used = {uuid for candidate in result.candidates for uuid in candidate.allocations}
    requested = {name for group in request.groups for name in group.resources}
    return req.shown({
        "allocation_requests": [_candidate(candidate, req.version) for candidate in result.candidates],
        "provider_summaries": {provider.uuid: _summary(provider, req.version, requested)
                               for provider in result.providers if req.version >= 29 or provider.uuid in used}})


def _candidate(candidate: Candidate, version: int) -> dict[str, Any]:
    if version < 12:
        return {"allocations": [{"resource_provider": {"uuid": uuid}, "resources": resources}
                                for uuid, resources in candidate.allocations.items()]}
    body: dict[str, Any] = {"allocations": {
        uuid: {"resources": resources} for uuid, resources in candidate.allocations.items()}}
    if version >= 34:
        body["mappings"] = candidate.mappings
    return body


def _summary(provider: ProviderView, version: int, requested: set[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"resources": {
        name: {"capacity": inventory.capacity, "used": inventory.used}
        for name, inventory in sorted(provider.inventories.items()) if version >= 27 or name in requested}}
    if version >= 17:
        body["traits"] = provider.traits
    if version >= 29:
        body.update(parent_provider_uuid=provider.parent_uuid, root_provider_uuid=provider.root_uuid)
    return body
