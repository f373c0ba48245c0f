"""Declarations of actions, and the filters, pages and tags that they share."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import re2

from nova.context import RequestContext
from nova.ec2 import ids
from nova.ec2.credentials import Caller
from nova.ec2.errors import Ec2Error, bad_value
from nova.ec2.parameters import FILTERS, Flag, Identifier, Integer, Kind, Struct, Text
from nova.ec2.render import text_of
from nova.ec2.rest import Rest

Item = dict[str, Any]
# Name of the element with the tags of an item.
TAG_SET = "tagSet"
# Maximum number of wildcards in the filters of a request.
MOST_WILDCARDS = 200


class Call:
    """A request in progress: parameters, caller, the REST API and ids. ``url``: the URL of this service."""

    def __init__(self, ctx: RequestContext, caller: Caller, rest: Rest, identifiers: ids.Ids, args: Mapping[str, Any],
                 url: str) -> None:
        self.ctx, self.caller, self.rest, self.ids, self.args, self.url = ctx, caller, rest, identifiers, args, url


@dataclasses.dataclass(frozen=True)
class Action:
    """An action: its name, its parameters, and the function that returns the elements of the response (None: success
    without further elements)."""

    name: str
    function: Callable[[Call], Any]
    parameters: Mapping[str, Kind] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def struct(self) -> Struct:
        return Struct({"DryRun": Flag(), **self.parameters})

    def run(self, call: Call) -> Mapping[str, Any]:
        if call.args["DryRun"]:
            raise Ec2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        answer: Mapping[str, Any] | None = self.function(call)
        return {"return": True} if answer is None else answer


@dataclasses.dataclass(frozen=True)
class Listing(Action):
    """An action that returns a list of items as ``key``. ``filters``: filter name -> path of the element to compare
    ("placement.availabilityZone"). ``ident``: the element that identifies an item; if set, the list is paged.
    ``grouped``: a function that converts the items of a page for the response."""

    key: str = ""
    filters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ident: str = ""
    grouped: Callable[[Call, list[Item]], list[Item]] | None = None

    @functools.cached_property
    def struct(self) -> Struct:
        paging: dict[str, Kind] = {
            "MaxResults": Integer(least=1, most=1000), "NextToken": Text(most=1000)} if self.ident else {}
        return Struct({"DryRun": Flag(), "Filter": FILTERS, **paging, **self.parameters})

    def run(self, call: Call) -> Mapping[str, Any]:
        if call.args["DryRun"]:
            raise Ec2Error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        conditions = [self._condition(given["Name"], _texts(given["Value"])) for given in _limited(call.args["Filter"])]
        items = [item for item in self.function(call) if all(condition(item) for condition in conditions)]
        answer: dict[str, Any] = {self.key: items}
        if self.ident:
            page, token = self._page(call, items)
            answer = {self.key: page} | ({"nextToken": token} if token else {})
        if self.grouped is not None:
            answer[self.key] = self.grouped(call, answer[self.key])
        return answer

    def _condition(self, name: str, matches: Callable[[str], bool]) -> Callable[[Any], bool]:
        """Return the condition of a filter. Raises InvalidParameterValue for an undeclared filter."""
        if name.startswith("tag:") or name in ("tag-key", "tag-value"):
            wanted = name.removeprefix("tag:") if name.startswith("tag:") else None
            element = "key" if name == "tag-key" else "value"
            return lambda item: any(matches(tag[element]) for tag in item.get(TAG_SET, ())
                                    if wanted is None or tag["key"] == wanted)
        if name not in self.filters:
            raise Ec2Error("InvalidParameterValue", f"The filter '{name[:255]}' is invalid")
        path = self.filters[name].split(".")
        return lambda item: any(map(matches, _values(item, path)))

    def _page(self, call: Call, items: list[Item]) -> tuple[list[Item], str]:
        start, most = 0, call.args["MaxResults"] or len(items)
        if call.args["NextToken"]:
            last = _decoded(call.args["NextToken"])
            positions = [number for number, item in enumerate(items) if item[self.ident] == last]
            if not positions:
                raise bad_value("NextToken", "the token is invalid or has expired.")
            start = positions[0] + 1
        page = items[start:start + most]
        more = start + most < len(items)
        return page, base64.urlsafe_b64encode(page[-1][self.ident].encode()).decode() if more and page else ""


def _decoded(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError) as error:
        raise bad_value("NextToken", "the token is invalid or has expired.") from error


def _limited(filters: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the filters. Raises InvalidParameterValue for too many wildcards, since they slow down every match."""
    if sum(value.count("*") + value.count("?") for given in filters for value in set(given["Value"])) > MOST_WILDCARDS:
        raise bad_value("Filter", f"a request can have at most {MOST_WILDCARDS} wildcards (* and ?).")
    return filters


def _texts(values: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tests whether a text matches a value of a filter: * stands for any text, ? for one
    character, and \\ quotes the next character. RE2 needs linear time for any value."""
    exact, patterns, wild = set[str](), list[Any](), {"*": ".*", "?": "."}
    for value in dict.fromkeys(values):
        tokens = re.findall(r"\\.|.", value, re.DOTALL)
        if wild.keys() & set(tokens):
            patterns.append(re2.compile("(?s)" + "".join(
                wild.get(token) or re2.escape(token[-1]) for token in tokens)))
        else:
            exact.add("".join(token[-1] for token in tokens))
    return lambda text: text in exact or any(pattern.fullmatch(text) for pattern in patterns)


def _values(item: Any, path: Sequence[str]) -> Iterator[str]:
    """Yield the texts of the element at ``path``; for lists, the texts of all their items."""
    if isinstance(item, list | tuple):
        for inner in item:
            yield from _values(inner, path)
    elif isinstance(item, Mapping):
        if path and path[0] in item:
            yield from _values(item[path[0]], path[1:])
    elif item is not None and not path:
        yield text_of(item)


def tag_set(tags: Mapping[str, str]) -> list[Item]:
    return [{"key": key, "value": value} for key, value in sorted(tags.items())]


def identifier(kind: str, required: bool = False) -> Identifier:
    """Return the type of a parameter with the id of an object of this kind."""
    return Identifier((kind,), ids.MALFORMED[kind], required)


def selected(items: Iterable[Item], kind: str, element: str, numbers: Sequence[int]) -> list[Item]:
    """Return the items with these ids, or all items if no ids are given. Raises Ec2Error for an id without an item."""
    by_id = {item[element]: item for item in items}
    if not numbers:
        return list(by_id.values())
    for number in numbers:
        if ids.text(kind, number) not in by_id:
            raise ids.missing(kind, number)
    return [by_id[ids.text(kind, number)] for number in dict.fromkeys(numbers)]
