"""Validation of notifications against the shapes in tests/data/notification_shapes.json, which contains the
names, versions, priorities, publishers, fields and types that consumers rely on."""

import json

from tests.paths import DATA

SHAPES = json.loads((DATA / "notification_shapes.json").read_text())
# Notifications without a fixed publisher: every service may send them.
_OF_ANYBODY = ("instance.update", "compute.exception", "service.create", "service.update", "service.delete")


def wrong(message):
    """Return the errors of a versioned notification, "" if there are none."""
    expected = SHAPES["events"].get(message["event_type"])
    if expected is None:
        # Reboots and others that fail are in no sample with each of their phases.
        expected = SHAPES["events"].get(message["event_type"].rpartition(".")[0] + ".start")
        if expected is None:
            return f"unknown event {message['event_type']}"
        expected = {**expected, "priority": "ERROR" if message["event_type"].endswith(".error") else "INFO"}
    binary, _colon, host = message["publisher_id"].partition(":")
    if message["event_type"] not in _OF_ANYBODY and binary not in expected["publishers"]:
        return f"{message['event_type']} of {binary}"
    if not host:
        return f"{message['event_type']} of no host"
    if message["priority"] != expected["priority"]:
        return f"{message['event_type']} with {message['priority']}"
    if message["payload"]["nova_object.name"] != expected["payload"]:
        return f"{message['event_type']} with {message['payload']['nova_object.name']}"
    return _wrong(message["payload"], message["event_type"])


def _wrong(payload, where):
    name, data = payload["nova_object.name"], payload["nova_object.data"]
    if set(payload) != {"nova_object.name", "nova_object.namespace", "nova_object.version", "nova_object.data"}:
        return f"{where}: {sorted(payload)}"
    shape = SHAPES["payloads"][name]
    if payload["nova_object.version"] != shape["version"]:
        return f"{where}: {name} {payload['nova_object.version']}"
    if name == "ImageMetaPropsPayload":  # it has what the image has
        return ""
    if set(data) != set(shape["fields"]):
        return f"{where}: fields of {name} differ: {sorted(set(data) ^ set(shape['fields']))}"
    for field, value in data.items():
        kinds = shape["fields"][field]
        for each, kind in _kinds(value):
            empty = kind == "list" and any(other.startswith("list") for other in kinds)
            if kind != "null" and set(kinds) != {"null"} and kind not in kinds and not empty:
                return f"{where}: {name}.{field} is {kind}, not {kinds}"
            if isinstance(each, dict) and "nova_object.data" in each and (found := _wrong(each, f"{where}: {field}")):
                return found
    return ""


def _kinds(value):
    """The value, or those in the list that it is, each with what it is in the words of the file."""
    if isinstance(value, list):
        return [(each, f"list of {kind}") for part in value for each, kind in _kinds(part)] or [(value, "list")]
    if isinstance(value, dict) and "nova_object.data" in value:
        return [(value, value["nova_object.name"])]
    return [(value, "null" if value is None else type(value).__name__)]
