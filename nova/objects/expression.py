"""Regular expressions that users send.

They are found by RE2, in a time that grows with the text and never explodes. What it does not know (backreferences,
look-around, inline comments) is refused, and so is what is long or, with its repetitions written out, large.
"""

from __future__ import annotations

import functools
from typing import Any

# Characters of an expression that is looked for.
LONGEST = 1024
# The same of what only has to be one: lists of tags are, too.
LONGEST_TEXT = 4096
# Bytes of a compiled expression per character that it may have: every character of a text may have to pass all of it.
_MEMORY = 64


@functools.lru_cache(maxsize=128)
def compiled(pattern: str, longest: int = LONGEST) -> Any:
    """``search`` and ``match`` of what it returns tell whether a text has it, whatever the case.

    Raises ValueError, with a sentence for the user.
    """
    if len(pattern) > longest:
        raise ValueError(f"A regular expression may have at most {longest} characters.")
    if "\0" in pattern:
        raise ValueError("A regular expression cannot have null characters.")
    import re2  # 2.6 MB, in a process that is asked for one

    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MEMORY * longest
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"This regular expression is not supported: {said}.") from error
    except UnicodeEncodeError as error:
        raise ValueError("A regular expression must be text.") from error
