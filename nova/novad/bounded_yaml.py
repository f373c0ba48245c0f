"""A YAML reader of bounded cost: nodes, with those that aliases stand for, are counted before any is built."""

from __future__ import annotations

from typing import Any, NoReturn

import yaml

_NODES = 20_000  # of a document, every alias counted with all that it stands for
_DEPTH = 32
_NUMBER = 100  # characters of a number or a date: converting "1:1:1…" takes time that grows with its square
_TEXT = "tag:yaml.org,2002:str"

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """A safe loader whose errors have a line and a column."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > _NUMBER:
            _refuse(node.start_mark, f"a number has more than {_NUMBER} characters: put text in quotes")
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            _refuse(node.start_mark, f"{node.value!r} cannot be read: {error}")


def load(text: str) -> Any:
    """Return the content of the only document. Raises ValueError, which names the line and the column."""
    try:
        _check(text)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"line {mark.line + 1}, column {mark.column + 1}: {words}" if mark else words) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _check(text: str) -> None:
    """Raise YAMLError for a tag, and for more nodes or levels than a document may have."""
    total = 0
    sizes: dict[str, int] = {}  # of what has an anchor
    around: list[tuple[str | None, int]] = []  # the collections that are open: their anchors, and the nodes before them
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _before in around):
                _refuse(event.start_mark, f"the alias *{event.anchor} stands for a collection that contains it")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = around.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.NodeEvent):
            if event.tag is not None:
                _refuse(event.start_mark, f"the tag {event.tag} is not accepted: write the value without it")
            if isinstance(event, yaml.CollectionStartEvent):
                around.append((event.anchor, total))
            elif event.anchor:
                sizes[event.anchor] = 1
            total += 1
        if total > _NODES:
            _refuse(event.start_mark, f"there are more than {_NODES} values, with those that aliases stand for")
        if len(around) > _DEPTH:
            _refuse(event.start_mark, f"more than {_DEPTH} levels are nested")


def _refuse(mark: Any, problem: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
