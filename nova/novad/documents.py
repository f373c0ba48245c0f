"""Strict reading of TOML and YAML at bounded cost. Errors name the line, or the field, of the mistake."""

import collections
import pathlib
import re
import stat
import tomllib
from typing import Any, Literal, NoReturn, TypeVar

import msgspec
import yaml

from nova.common.errors import Invalid

T = TypeVar("T")

_MOST = 1 << 20  # maximum number of bytes of a file
# Matches a TOML key of more than 16 parts: the time of tomllib grows with the cube of the number of parts.
_LONG_KEY = re.compile(r"""(?<![\w."'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""", re.ASCII)
# Maximum number of values of a YAML document, checked before values are built. An alias counts as all its values.
_NODES = 20_000
_LONG = 500  # Number of characters: a text counts as one value, and one more for each _LONG characters.
_DEPTH = 32
# Maximum number of characters of a number or date: the time to convert "1:1:1…" grows with the square of its length.
_NUMBER = 100
_TEXT = "tag:yaml.org,2002:str"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """A safe loader whose errors have a line and a column."""

    def flatten_mapping(self, node: Any) -> None:
        keys = collections.Counter(str(key.value) for key, _value in node.value if key.value != "<<")
        if len(keys) < keys.total() and not hasattr(node, "flat"):  # A flattened table also has keys of merged tables.
            _refuse(node.start_mark, f"the key {keys.most_common(1)[0][0]!r} is defined twice")
        node.flat = True
        super().flatten_mapping(node)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > _NUMBER:
            _refuse(node.start_mark, f"a number has more than {_NUMBER} characters: put text in quotes")
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            _refuse(node.start_mark, f"{node.value!r} cannot be read: {error}")


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A table of a document. Unknown fields are refused."""


def read(path: pathlib.Path, what: str) -> str:
    """Return the text of a regular file of limited size, which may be read several times. Raises Invalid."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise Invalid(f"{what} {path} cannot be read: not a regular file.")
        if about.st_size > _MOST:
            raise Invalid(f"{what} {path} has more than {_MOST} bytes.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise Invalid(f"{what} {path} cannot be read: {error}") from None


def parse(text: str, kind: Literal["toml", "yaml"], name: str) -> Any:
    """Return the content of a document. Raises Invalid, which begins with ``name`` and has the line of the mistake."""
    try:
        if kind == "yaml":
            _check(text)
            return yaml.load(text, _Loader)
        if match := _LONG_KEY.search(text):
            raise ValueError(f"line {text.count(chr(10), 0, match.start()) + 1}: a key has more than 16 parts")
        return tomllib.loads(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = ", ".join(part for part in (error.context, error.problem) if part)
        why = f"line {mark.line + 1}, column {mark.column + 1}: {why}" if mark else why
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = str(error)
    raise Invalid(f"{name}: not valid {kind.upper()}: {why}")


def convert(data: Any, kind: type[T], name: str) -> T:
    """Return the content as ``kind``, a Strict. Raises Invalid, which begins with ``name`` and has the field's path."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"{name}: {_located(str(error), data, kind)}") from None


def _located(message: str, data: Any, kind: type[Any]) -> str:
    """Return the message of msgspec with the field in front. [...] stands for the first wrong entry of a table: all
    other entries are removed from ``data``."""
    problem, at, path = message.rpartition(" - at `")
    if not at:
        return message
    where, here = "", data
    for word in re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", path.replace("key` in `", "").strip("`$.")):
        if word.startswith("[") and word != "[...]":
            where, here = where + word, here[int(word[1:-1])]
        else:
            key = _first_wrong(here, message, data, kind) if word == "[...]" else word
            where, here = f"{where}.{key}".lstrip("."), here[key]
    if path.startswith("key"):
        return f"{where}: {_first_wrong(here, message, data, kind)!r} cannot be a name there: {problem}"
    return f"{where}: {problem}"


def _first_wrong(table: dict[Any, Any], message: str, data: Any, kind: type[Any]) -> Any:
    """Return the first key of a table in ``data`` that causes this error, by bisection, and remove all other keys."""
    entries = [*table.items()]
    while len(entries) > 1:
        half = len(entries) // 2
        table.clear()
        table.update(entries[:half])
        try:
            msgspec.convert(data, kind)
            entries = entries[half:]
        except msgspec.ValidationError as error:
            entries = entries[:half] if str(error) == message else entries[half:]
    table.clear()
    table.update(entries)
    return entries[0][0]


def _check(text: str) -> None:
    """Raise YAMLError for a tag, and for more nodes or levels than a document may have."""
    total = 0
    sizes: dict[str, int] = {}  # number of values by anchor
    open_collections: list[tuple[str | None, int]] = []  # (anchor, number of values before the collection)
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _before in open_collections):
                _refuse(event.start_mark, f"the alias *{event.anchor} stands for a collection that contains it")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_collections.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.NodeEvent):
            if event.tag is not None:
                _refuse(event.start_mark, f"the tag {event.tag} is not accepted: write the value without it")
            if isinstance(event, yaml.CollectionStartEvent):
                open_collections.append((event.anchor, total))
                total += 1
            else:
                sizes[event.anchor] = 1 + len(event.value) // _LONG
                total += sizes[event.anchor]
        if total > _NODES:
            _refuse(event.start_mark, f"there are more than {_NODES} values, with those that aliases stand for")
        if len(open_collections) > _DEPTH:
            _refuse(event.start_mark, f"more than {_DEPTH} levels are nested")


def _refuse(mark: Any, problem: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
