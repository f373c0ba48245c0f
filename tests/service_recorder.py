"""A recorder of the fields that Nova reads in responses of external services and sends to them.

tests/data/service_fields.json lists all fields: those that are read, with a reason for each other one, and for each
field that is sent the functions that send it."""

import ast
import collections
import inspect
import json
import re
import sys
import typing

from nova.service_clients import ServiceClient
from tests.paths import ROOT

TABLE = json.loads((ROOT / "tests/data/service_fields.json").read_text("utf-8"))
# Ids in paths, and the project in paths of Cinder.
_IDS = re.compile(r"(?<=^/v3)/[^/]+|(?<=/)[0-9a-f]{8}-[0-9a-f-]{27}")


class Fields(dict):
    """A dict that adds the keys that are read to the set ``read``."""

    def __init__(self, values=(), read=None):
        super().__init__(values)
        self.read = set() if read is None else read

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.read.add(key)
        return super().__contains__(key)


class Recorder:
    """Records the fields that are ``read`` in responses, by the name of their shape, and those that are ``sent``:
    {service: {method and path: {field: functions}}}. ``methods``: the functions of ``client``, the module of a client,
    that sent requests."""

    def __init__(self, monkeypatch, client):
        self.read, self.methods, self._client = collections.defaultdict(set), set(), client
        self.sent = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(set)))
        send, decode = ServiceClient.request, client.decode_response

        def request(service, ctx, method, path, *more, **named):
            self._record(service, method, path, named)
            return send(service, ctx, method, path, *more, **named)

        monkeypatch.setattr(ServiceClient, "request", request)
        monkeypatch.setattr(client, "decode_response", lambda response, shape, key="": self._recording(
            decode(response, shape, key), shape))

    def _recording(self, value, shape):
        """Return the value with dicts that record the keys that are read."""
        shape = next((kind for kind in typing.get_args(shape) if kind is not type(None)), shape) \
            if type(None) in typing.get_args(shape) else shape
        if typing.get_origin(shape) is list and value is not None:
            return [self._recording(item, typing.get_args(shape)[0]) for item in value]
        if typing.is_typeddict(shape) and value is not None:
            hints = typing.get_type_hints(shape)
            return Fields({key: self._recording(item, hints.get(key)) for key, item in value.items()},
                          self.read[shape.__name__.lstrip("_")])
        return value

    def _record(self, service, method, path, named):
        frame, callers = sys._getframe(2), []
        while frame:
            if frame.f_globals["__name__"].startswith("nova."):
                callers.append((frame.f_globals["__name__"], frame.f_code.co_qualname.partition(".<locals>")[0]))
            frame = frame.f_back
        self.methods.update(name for module, name in callers if module == self._client.__name__)
        place = next((name for module, name in callers if module != self._client.__name__), callers[-1][1])
        named_path = _IDS.sub(lambda found: "" if found[0].startswith("/") else "{id}", path)
        request = self.sent[service._group][f"{method} {named_path}"]
        for field in [*_fields(named.get("json")), *(f"?{name}" for name in named.get("params") or ())]:
            request[field].add(place)

    def requests(self, service):
        """Return {method and path: {field: functions}} of the requests to the service."""
        return {request: {field: sorted(places) for field, places in sorted(fields.items())}
                for request, fields in sorted(self.sent[service].items()) if fields}


def _fields(body):
    """Return the names of the fields of a body, with their parent, or the operations and paths of a JSON patch."""
    if isinstance(body, list):
        return [f"{change['op']} {change['path']}" for change in body]
    return [f"{parent}.{name}" if name else parent for parent, values in (body or {}).items()
            for name in (values if isinstance(values, dict) and values else [""])]


def senders(module):
    """Return the names of the methods of a module that call ``_request``."""
    tree = ast.parse(inspect.getsource(module))
    return {f"{kind.name}.{function.name}" for kind in tree.body if isinstance(kind, ast.ClassDef)
            for function in kind.body if isinstance(function, ast.FunctionDef) and any(
                isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_request"
                for node in ast.walk(function))}


def check_read(kind, read, shape=None):
    """Check that exactly the used and refused fields are ``read`` (and those of the ``shape``), and that each other
    field has a reason."""
    used, refused, unused = (TABLE[kind][name] for name in ("used", "refused", "not used"))
    named = [*used, *refused, *unused]
    assert len(named) == len(set(named)), "a field is listed twice"
    assert all(unused.values())
    assert sorted(read) == sorted([*used, *refused]), (set(read) ^ {*used, *refused})
    if shape is not None:
        assert sorted(read) == sorted(typing.get_type_hints(shape))
    print(f"{kind}: {len(used)} used, {len(refused)} refused, {len(unused)} listed")


def check_sent(service, sent):
    """Check that exactly the listed fields are sent, by the listed functions, and that others have a reason."""
    table = TABLE[f"sent to {service}"]
    assert {request: fields["sent"] for request, fields in table.items() if fields["sent"]} == sent
    for request, fields in table.items():
        unsent = fields.get("not sent", {})
        assert all(unsent.values())
        assert not fields["sent"].keys() & unsent.keys(), request
    print(f"{service}: {sum(len(fields) for fields in sent.values())} fields of {len(sent)} requests")
