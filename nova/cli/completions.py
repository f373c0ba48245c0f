"""Shell scripts that complete commands and options."""

from __future__ import annotations

from nova.cli import shell as commands_of_cliff
from nova.cli.commands import COMMANDS, load
from nova.cli.declare import Declared
from nova.cli.platform.commands import COMMANDS as PLATFORM
from nova.cli.platform.commands import load as load_platform

_BASH = """\
_nova() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= seen
    for seen in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $seen in -*) ;; *) command=$seen; break ;; esac
    done
    case $command in
    '') COMPREPLY=($(compgen -W "{names} help" -- "$word")) ;;
    help) COMPREPLY=($(compgen -W "{names}" -- "$word")) ;;
{cases}
    esac
    [ ${{#COMPREPLY[@]}} -gt 0 ] || [[ $word == -* ]] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _nova nova"""

_ZSH = """\
#compdef nova
_nova() {{
    local -a commands
    commands=(
{commands}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case $words[2] in
    help) _describe command commands ;;
{cases}
    esac
}}
compdef _nova nova"""


def script(name: str) -> str:
    """Return the script for bash, zsh or fish.

    All commands are loaded; those for novad are omitted if nova[novad] is not installed.
    """
    declared = _declared()
    words: dict[str, list[str]] = {}  # first word: second words of its commands
    for command in declared:
        first, _space, second = command.partition(" ")
        words.setdefault(first, []).extend([second] if second else [])
    helps = {first: declared[first].help if first in declared else f"{', '.join(seconds)}."
             for first, seconds in sorted(words.items())}
    options = {first: sorted({*words[first], *(option for command, command_declared in declared.items()
                                              if command.partition(" ")[0] == first
                                              for option in _options(command, command_declared))}) for first in helps}
    if name == "fish":
        return _fish(helps, options)
    if name == "zsh":
        commands = "\n".join(f"        {_quoted(f'{command}:{_colons(text)}')}" for command, text in helps.items())
        others = {command: f"compadd -- {' '.join(seconds)}" if seconds else "_files"
                  for command, seconds in words.items()}
        cases = "\n".join(f"    {command}) if [[ $PREFIX == -* ]]; then compadd -- {' '.join(options[command])}; "
                          f"else {others[command]}; fi ;;" for command in helps)
        return _ZSH.format(commands=commands, cases=cases)
    cases = "\n".join(f"    {command}) COMPREPLY=($(compgen -W \"{' '.join(options[command])}\" -- \"$word\")) ;;"
                      for command in helps)
    return _BASH.format(names=" ".join(helps), cases=cases)


def _declared() -> dict[str, Declared]:
    """Return all commands by name; a command of both services (``update``) has the options of both."""
    commands = {command: load(command) for command in COMMANDS}
    try:
        platform = {command: load_platform(command) for command in PLATFORM}
    except ModuleNotFoundError:
        return commands
    return {**platform, **commands, **{f"{name} ": declared for name, declared in platform.items() if name in commands}}


def _options(command: str, declared: Declared) -> list[str]:
    parser = commands_of_cliff.parser_of(command, declared)
    return sorted(word for action in parser._actions for word in action.option_strings if word.startswith("--"))


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(helps: dict[str, str], options: dict[str, list[str]]) -> str:
    lines = ["complete -c nova -f"]
    for command, text in helps.items():
        lines.append(f"complete -c nova -n __fish_use_subcommand -a {command} -d \"{_plain(text)}\"")
        lines += [f"complete -c nova -n '__fish_seen_subcommand_from {command}' "
                  f"{f'-l {word[2:]}' if word.startswith('--') else f'-a {word}'}" for word in options[command]]
    return "\n".join(lines)


def _plain(text: str) -> str:
    for character in '\\"$':
        text = text.replace(character, f"\\{character}")
    return text
