"""Mutants: small faults in the product that tests must detect.

Each fault is declared in ``mutants.toml``: the text that it replaces, and the tests that detect it. ``python -m
tools.mutants`` applies one fault at a time to a copy of the repository and runs its tests, at least one of which must
fail.
"""

from __future__ import annotations

import itertools
import pathlib
import re
import tomllib
from typing import Annotated

import msgspec

ROOT = pathlib.Path(__file__).parents[2]
DECLARATIONS = pathlib.Path(__file__).with_name("mutants.toml")
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault. ``before``: the code that ``after`` replaces; it occurs once in ``file``, however its lines are wrapped.

    ``tests``: files and folders of tests, at least one test of which fails with the fault.
    """

    name: str
    file: str
    fault: str
    before: Annotated[str, msgspec.Meta(pattern=r"\S")]
    after: str
    tests: Annotated[list[str], msgspec.Meta(min_length=1)]

    def occurrences(self, source: str) -> list[tuple[int, int]]:
        """Return the positions of ``before`` in a source text."""
        return [match.span() for match in _pattern(self.before).finditer(source)]

    def apply(self, source: str) -> str:
        """Return the source text with the fault. Raises ValueError if ``before`` does not occur exactly once."""
        spans = self.occurrences(source)
        if len(spans) != 1:
            raise ValueError(f"`before` of mutant {self.name} occurs {len(spans)} times in {self.file}, not once")
        (start, end), = spans
        return source[:start] + self.after.strip() + source[end:]


def load() -> list[Mutant]:
    """Return the declared mutants, in their order. Raises msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads(DECLARATIONS.read_text())["mutants"], list[Mutant])


def _pattern(code: str) -> re.Pattern[str]:
    """Return a pattern of the code that ignores line breaks, indentation and spaces between tokens."""
    tokens = _TOKEN.findall(code)
    gaps = [r"\s+" if _WORD.match(token) and _WORD.match(following) else r"\s*"
            for token, following in itertools.pairwise(tokens)]
    text = re.escape(tokens[0]) + "".join(gap + re.escape(token) for gap, token in zip(gaps, tokens[1:], strict=True))
    begin, end = ("(?<!\\w)" if _WORD.match(tokens[0]) else ""), ("(?!\\w)" if _WORD.match(tokens[-1]) else "")
    return re.compile(begin + text + end)
