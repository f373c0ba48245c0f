"""Texts that a regular expression requires, so that a database can discard most rows before the expression is tried.
The parser reads the part of RE2's syntax that names usually need. An expression with other syntax yields no texts."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import NamedTuple

# Characters that match themselves in every expression and in every collation.
_PLAIN = frozenset(string.ascii_letters + string.digits + " ,:/@%_=-#~!\"'<>;&")
_ESCAPED = frozenset(string.punctuation)
# Escapes that match a class of characters or a position.
_CLASSES = frozenset("dDwWsSbB")
_REPEAT = re.compile(r"[*?+]\??|\{(\d+)(,\d*)?\}\??")
_SET = re.compile(r"\[\^?\]?(?:\\[^\\\[\]]|[^\\\[\]])*\]")
# Maximum number of required texts of an expression, and their minimum length: shorter texts exclude too few rows.
_MAX_TEXTS = 8
_MIN_LENGTH = 2


class Required(NamedTuple):
    """Texts that a match must contain: all ``texts``, and at least one alternative of each tuple in ``choices``."""

    texts: tuple[str, ...] = ()
    choices: tuple[tuple[Required, ...], ...] = ()

    @property
    def size(self) -> int:
        """Return the number of texts, including those in ``choices``."""
        return len(self.texts) + sum(part.size for choice in self.choices for part in choice)


class _UnknownSyntaxError(Exception):
    pass


def of(pattern: str) -> Required:
    """Return the texts that every match of the pattern contains, ignoring case; empty if none can be derived. The time
    is linear in the length of the pattern."""
    reader = _Reader(pattern)
    try:
        branches = tuple(reader.branches())
        if reader.position < len(pattern):
            raise _UnknownSyntaxError
    except (_UnknownSyntaxError, RecursionError):
        return Required()
    required = branches[0] if len(branches) == 1 else Required(choices=_choice(branches))
    return required if required.size <= _MAX_TEXTS else Required(required.texts[:_MAX_TEXTS])


def _choice(branches: tuple[Required, ...]) -> tuple[tuple[Required, ...], ...]:
    return (branches,) if all(branch.size for branch in branches) else ()


class _Reader:
    """The pattern and the position up to which it is parsed."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.position = pattern, 0

    def branches(self) -> Iterator[Required]:
        """Yield the required texts of each alternative, up to a closing parenthesis or the end of the pattern."""
        yield self._sequence()
        while self._take("|"):
            yield self._sequence()

    def _sequence(self) -> Required:
        texts: list[str] = []
        choices: list[tuple[Required, ...]] = []
        run = ""
        while (char := self.pattern[self.position:self.position + 1]) not in ("", "|", ")"):
            literal = self._literal(char)
            group = self._group() if char == "(" else None
            if literal is None and group is None:
                self._skip(char)
            repeat = _REPEAT.match(self.pattern, self.position)
            if repeat is not None:
                self.position = repeat.end()
                if repeat[0][0] in "*?" or (repeat[1] and int(repeat[1]) == 0):
                    literal = group = None
            if literal is not None:
                run += literal
            if literal is None or repeat is not None:
                texts.append(run)
                run = ""
            if group is not None:
                texts += group.texts
                choices += group.choices
        texts.append(run)
        return Required(tuple(text for text in texts if len(text) >= _MIN_LENGTH), tuple(choices))

    def _literal(self, char: str) -> str | None:
        """Take a character that matches itself, or return None."""
        if char in _PLAIN:
            self.position += 1
            return char
        escaped = self.pattern[self.position + 1:self.position + 2]
        if char == "\\" and escaped in _ESCAPED and escaped:
            self.position += 2
            return escaped
        return None

    def _group(self) -> Required:
        self.position += 1
        if self.pattern.startswith("?", self.position) and not self._take("?:"):
            raise _UnknownSyntaxError
        branches = tuple(self.branches())
        if not self._take(")"):
            raise _UnknownSyntaxError
        return branches[0] if len(branches) == 1 else Required(choices=_choice(branches))

    def _skip(self, char: str) -> None:
        """Skip a part from which no text is derived. Raises _UnknownSyntaxError."""
        if char in ".^$" or (ord(char) > 127 and char.isprintable()):
            self.position += 1
        elif char == "\\" and self.pattern[self.position + 1:self.position + 2] in _CLASSES:
            self.position += 2
        elif (matched := _SET.match(self.pattern, self.position)) is not None:
            self.position = matched.end()
        else:
            raise _UnknownSyntaxError

    def _take(self, text: str) -> bool:
        taken = self.pattern.startswith(text, self.position)
        self.position += len(text) * taken
        return taken
