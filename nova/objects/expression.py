"""Regular expressions in searches for names.

RE2 matches in a time that is linear in the text. A text that contains the expression literally matches, too, because
names like "vm (test)" are rarely meant as expressions. Expressions that RE2 does not support ("c++", "web[1",
backreferences, look-around) or that are expensive to compile are searched as plain text only."""

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

LONGEST = 1024  # maximum number of characters of an expression
LONGEST_TEXT = 4096  # maximum number of characters of a query parameter that may be an expression or a list of tags
# Maximum size of a compiled expression in bytes, which bounds the time per character of a text. Beyond it, the
# expression is searched as plain text only.
_MEMORY = 64 * LONGEST
_LITERAL_MEMORY = 8 * _MEMORY  # maximum size in bytes of a compiled plain text, or of an expression in finder()
# Maximum number of Unicode classes (\pL) in an expression, each of which takes as long to compile as hundreds of
# characters. Beyond it, the expression is searched as plain text only.
_MOST_CLASSES = 8


# Parts of an expression whose meaning differs if many texts are searched as lines of one text; finder() returns None.
_NO_LINES = ("\n", "\r", r"\n", r"\r", r"\x", r"\0", r"\A", r"\z", r"\Q")

_PLAIN = re.compile(r"[\w.]*")  # expressions that match each text that contains them

# A function (text, position) that returns the position of the first match at or after ``position``, or -1.
Finder = Callable[[bytes, int], int]


class Expression(NamedTuple):
    """Functions for a compiled expression: ``search`` returns True for a text that contains a match, ``match`` for one
    that begins with a match; case is ignored. ``literal``: the expression is searched as plain text only."""

    search: Callable[[str], bool]
    match: Callable[[str], bool]
    literal: bool


def check(pattern: str, longest: int = LONGEST) -> str:
    """Return the pattern. Raises ValueError, with a message for the user, if it is too long or not valid text."""
    if len(pattern) > longest:
        raise ValueError(f"A regular expression may have at most {longest} characters.")
    if "\0" in pattern:
        raise ValueError("A regular expression cannot have null characters.")
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise ValueError("A regular expression must be text that UTF-8 can encode.") from None
    return pattern


@functools.lru_cache(maxsize=128)
def compiled(pattern: str) -> Expression:
    """Return the compiled pattern. Raises ValueError as check() does."""
    check(pattern)
    import re2  # The import costs 2.6 MB, only in a process that gets an expression.

    searches = [_compiled(re2.escape(pattern), _LITERAL_MEMORY)]
    if pattern.count(r"\p") + pattern.count(r"\P") <= _MOST_CLASSES:
        with contextlib.suppress(re2.error):
            searches.append(_compiled(pattern, _MEMORY))
    return Expression(lambda text: any(search.search(text) for search in searches),
                      lambda text: any(search.match(text) for search in searches), literal=len(searches) == 1)


@functools.lru_cache(maxsize=128)
def finder(pattern: str, literal: bool = False, before: str = "") -> Finder | None:
    """Return a function that finds lines of a text in which the compiled pattern follows ``before``.

    The function may also find lines that do not match. The caller has replaced line ends within a value by "\\r".
    ``literal``: the pattern is plain text. Return None if the expression has one of ``_NO_LINES`` or is too expensive.
    """
    import re2

    texts = [before + re2.escape(pattern)]
    if not literal and not compiled(pattern).literal:
        if any(part in pattern for part in _NO_LINES):
            return None
        texts = [*([] if _PLAIN.fullmatch(pattern) else texts), f"(?m:{before}(?:{pattern}))"]
    try:
        searches = [_compiled(text, _LITERAL_MEMORY) for text in texts]
    except re2.error:
        return None

    def find(text: bytes, position: int) -> int:
        matches = [search.search(text, position) for search in searches]
        return min((match.start() for match in matches if match), default=-1)

    return find


def _compiled(pattern: str, memory: int) -> Any:
    import re2

    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    options.max_mem = memory
    return re2.compile(pattern, options)
