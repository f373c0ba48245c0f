"""Help pages of ``nova`` and ``novad``: NAME, USAGE, AUTHOR, then one section per table of commands or options."""

from collections.abc import Mapping, Sequence

AUTHOR = "Axyon Project"
HELP_COMMAND = ("help, h", "Shows a list of commands or help for one command")
DEBUG_OPTION = ("--debug, -D", "enable debug logging (default: false)")
HELP_OPTION = ("--help, -h", "show help")
VERSION_OPTION = ("--version, -v", "print the version")

# The left column (a command, or an option with its value) and its description.
Row = tuple[str, str]


def render(name: str, usage: str, tables: Mapping[str, Sequence[Row]], author: str = "") -> str:
    """Return the page. ``tables``: the rows of each section, by its heading."""
    sections = {"NAME": [name], "USAGE": [usage], **({"AUTHOR": [author]} if author else {})}
    for heading, rows in tables.items():
        width = max(len(left) for left, _right in rows)
        sections[heading] = [f"{left:<{width}}  {right}".rstrip() for left, right in rows]
    return "\n\n".join("\n".join([f"{heading}:", *(f"   {line}" for line in lines)])
                       for heading, lines in sections.items()) + "\n"
