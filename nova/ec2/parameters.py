"""Parameters of query requests: flat names ("Filter.1.Value.2") become nested values of declared types.

All parameters of a request are validated before nova-api is called."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl

from nova.common import plain_ip
from nova.ec2.errors import Ec2Error, bad_value, missing_parameter

# Limits of a request: number of parameters, nesting depth and length of their names, and elements of a list.
MOST_PARAMETERS = 1000
_DEEPEST = 8
_LONGEST_NAME = 255
MOST_ELEMENTS = 1000
# Maximum number of user data bytes, before base64.
MOST_USER_DATA = 16 * 1024
# Parameters of the EC2 protocol, which actions do not declare.
PROTOCOL = frozenset({
    "Action", "Version", "AWSAccessKeyId", "Signature", "SignatureVersion", "SignatureMethod", "Timestamp", "Expires",
    "SecurityToken", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders",
    "X-Amz-Signature", "X-Amz-Security-Token"})
_NUMBER = re.compile("-?[0-9]{1,15}")
_INDEX = re.compile("[1-9][0-9]{0,3}")
_TOKEN = re.compile("[\x21-\x7e]*")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")

Tree = dict[str, Any]


def flat(*sources: str) -> dict[str, str]:
    """Return the parameters of URL-encoded texts. Raises Ec2Error for malformed and repeated parameters."""
    parameters: dict[str, str] = {}
    for source in sources:
        if not source:
            continue
        if source.count("&") >= MOST_PARAMETERS:
            raise Ec2Error("InvalidQueryParameter", f"The request has more than {MOST_PARAMETERS} parameters.")
        try:
            pairs = parse_qsl(source, keep_blank_values=True, strict_parsing=True, errors="strict")
        except ValueError as error:
            raise Ec2Error("MalformedQueryString", "The parameters are not URL-encoded UTF-8.") from error
        for name, value in pairs:
            if len(name) > _LONGEST_NAME:
                raise Ec2Error("InvalidQueryParameter", f"The name of a parameter is longer than {_LONGEST_NAME}.")
            if name in parameters:
                raise Ec2Error("InvalidQueryParameter", f"The parameter {name} occurs more than once.")
            if _CONTROL.search(value):
                raise bad_value(name, "it contains a control character.")
            parameters[name] = value
    if len(parameters) > MOST_PARAMETERS:
        raise Ec2Error("InvalidQueryParameter", f"The request has more than {MOST_PARAMETERS} parameters.")
    return parameters


def tree_of(parameters: Mapping[str, str]) -> Tree:
    """Return the parameters of the action as nested mappings. Raises Ec2Error if a name is both a value and a list."""
    tree: Tree = {}
    for name, value in parameters.items():
        if name in PROTOCOL:
            continue
        *path, last = name.split(".")
        if len(path) >= _DEEPEST:
            raise Ec2Error("InvalidQueryParameter", f"The parameter {name} is nested too deeply.")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise Ec2Error("InvalidQueryParameter", f"The parameter {name} conflicts with another one.")
        if last in node:
            raise Ec2Error("InvalidQueryParameter", f"The parameter {name} conflicts with another one.")
        node[last] = value
    return tree


class Kind(Protocol):
    """A type of parameters."""

    @property
    def required(self) -> bool: ...

    def read(self, node: Any, name: str) -> Any:
        """Return the value of a parameter. Raises Ec2Error naming the parameter."""

    def absent(self) -> Any:
        """Return the value of a parameter that the request does not have."""


def _scalar(node: Any, name: str) -> str:
    if not isinstance(node, str):
        raise bad_value(name, "a single value is expected.")
    return node


@dataclasses.dataclass(frozen=True)
class Text:
    """A text. ``choices``: the only possible values; ``least``, ``most``: numbers of characters; ``token``: True for
    printable ASCII characters without blanks."""

    required: bool = False
    least: int = 0
    most: int = 255
    choices: tuple[str, ...] = ()
    token: bool = False

    def read(self, node: Any, name: str) -> str:
        value = _scalar(node, name)
        if self.choices and value not in self.choices:
            raise bad_value(name, f"{value[:255]} is not one of {', '.join(self.choices)}.")
        if not self.least <= len(value) <= self.most:
            raise bad_value(name, f"{self.least} to {self.most} characters are expected.")
        if self.token and not _TOKEN.fullmatch(value):
            raise bad_value(name, "printable ASCII characters are expected.")
        return value

    def absent(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Integer:
    """A number between ``least`` and ``most``."""

    required: bool = False
    least: int = 0
    most: int = 2**31 - 1

    def read(self, node: Any, name: str) -> int:
        value = _scalar(node, name)
        if not _NUMBER.fullmatch(value) or not self.least <= int(value) <= self.most:
            raise bad_value(name, f"a number from {self.least} to {self.most} is expected.")
        return int(value)

    def absent(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Flag:
    """A boolean."""

    required: bool = False

    def read(self, node: Any, name: str) -> bool:
        value = _scalar(node, name).lower()
        if value not in ("true", "false"):
            raise bad_value(name, "true or false is expected.")
        return value == "true"

    def absent(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Address:
    """An IP address."""

    required: bool = False

    def read(self, node: Any, name: str) -> str:
        value = _scalar(node, name)
        try:
            return str(plain_ip.address(value))
        except ValueError as error:
            raise bad_value(name, "an IP address is expected.") from error

    def absent(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Data in base64, of at most ``most`` bytes."""

    required: bool = False
    most: int = MOST_USER_DATA

    def read(self, node: Any, name: str) -> bytes:
        value = _scalar(node, name)
        if self.required and not value:
            raise missing_parameter(name)
        if len(value) > self.most * 2:
            raise bad_value(name, f"it has more than {self.most} bytes.")
        try:
            data = base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise bad_value(name, "base64 is expected.") from error
        if len(data) > self.most:
            raise bad_value(name, f"it has more than {self.most} bytes.")
        return data

    def absent(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Identifier:
    """An EC2 id of one of the ``prefixes``; its value is the number. ``code``: the error code for any other text."""

    prefixes: tuple[str, ...]
    code: str = "InvalidParameterValue"
    required: bool = False

    def read(self, node: Any, name: str) -> int:
        value = _scalar(node, name)
        prefix, dash, digits = value.partition("-")
        if prefix not in self.prefixes or not dash or not re.fullmatch("[0-9a-f]{1,12}", digits):
            raise Ec2Error(self.code, f"Invalid id: \"{value[:255]}\" (expecting \"{self.prefixes[0]}-...\")")
        return int(digits, 16)

    def absent(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class Many:
    """A list of at most ``most`` elements, "Name.1", "Name.2" ..."""

    inner: Kind
    required: bool = False
    most: int = MOST_ELEMENTS

    def read(self, node: Any, name: str) -> list[Any]:
        if not isinstance(node, dict):
            raise bad_value(name, f"a list ({name}.1) is expected.")
        if len(node) > self.most:
            raise bad_value(name, f"the list has more than {self.most} elements.")
        for key in node:
            if not _INDEX.fullmatch(key):
                raise bad_value(f"{name}.{key}", "it is not a position in a list.")
        return [self.inner.read(node[key], f"{name}.{key}") for key in sorted(node, key=int)]

    def absent(self) -> list[Any]:
        return []


class Struct:
    """A structure of declared fields; other fields are errors."""

    def __init__(self, fields: Mapping[str, Kind], required: bool = False) -> None:
        self.fields, self.required = dict(fields), required

    def read(self, node: Any, name: str = "") -> dict[str, Any]:
        if not isinstance(node, dict):
            raise bad_value(name, "a structure is expected.")
        prefix = f"{name}." if name else ""
        for key in node:
            if key not in self.fields:
                raise Ec2Error("UnknownParameter", f"The parameter {prefix}{key} is not recognized or not supported.")
        values = {}
        for key, kind in self.fields.items():
            if key in node:
                values[key] = kind.read(node[key], f"{prefix}{key}")
            elif kind.required:
                raise missing_parameter(f"{prefix}{key}")
            else:
                values[key] = kind.absent()
        return values

    def absent(self) -> dict[str, Any]:
        return {key: kind.absent() for key, kind in self.fields.items()}


TAGS = Many(Struct({"Key": Text(required=True, least=1), "Value": Text()}), most=50)
TAG_SPECIFICATION = Many(Struct({"ResourceType": Text(required=True), "Tag": TAGS}), most=10)
FILTERS = Many(Struct({"Name": Text(required=True, least=1), "Value": Many(Text(), most=200)}), most=50)


def tags_for(specifications: Sequence[Mapping[str, Any]], kind: str) -> dict[str, str]:
    """Return the tags of the objects that a request creates. Raises Ec2Error for other types of objects."""
    tags: dict[str, str] = {}
    for specification in specifications:
        if specification["ResourceType"] != kind:
            raise bad_value("TagSpecification.ResourceType", f"only {kind} is supported here.")
        tags |= {tag["Key"]: tag["Value"] or "" for tag in specification["Tag"]}
    check_tags(tags)
    return tags


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise InvalidParameterValue for keys that begin with ec2:, which this API uses for attributes of its own."""
    if any(key.startswith("ec2:") for key in tags):
        raise bad_value("Tag.Key", "keys that begin with ec2: are reserved.")
