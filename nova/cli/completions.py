"""Scripts with which shells complete commands and options."""

from __future__ import annotations

from nova.cli import shell as commands_of_cliff
from nova.cli.commands import COMMANDS, load

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
    """For bash, zsh or fish; all commands are loaded for it."""
    helps = {command: load(command).help for command in sorted(COMMANDS)}
    options = {command: _options(command) for command in helps}
    if name == "fish":
        return _fish(helps, options)
    if name == "zsh":
        commands = "\n".join(f"        {_quoted(f'{command}:{_colons(text)}')}" for command, text in helps.items())
        cases = "\n".join(f"    {command}) if [[ $PREFIX == -* ]]; then compadd -- {' '.join(options[command])}; "
                          f"else _files; fi ;;" for command in helps)
        return _ZSH.format(commands=commands, cases=cases)
    cases = "\n".join(f"    {command}) COMPREPLY=($(compgen -W \"{' '.join(options[command])}\" -- \"$word\")) ;;"
                      for command in helps)
    return _BASH.format(names=" ".join(helps), cases=cases)


def _options(command: str) -> list[str]:
    parser = commands_of_cliff.parser_of(command, load(command))
    return sorted(word for action in parser._actions for word in action.option_strings if word.startswith("--"))


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(helps: dict[str, str], options: dict[str, list[str]]) -> str:
    lines = ["complete -c nova -f"]
    for command, text in helps.items():
        lines.append(f"complete -c nova -n __fish_use_subcommand -a {command} -d \"{_plain(text)}\"")
        lines += [f"complete -c nova -n '__fish_seen_subcommand_from {command}' -l {option[2:]}"
                  for option in options[command]]
    return "\n".join(lines)


def _plain(text: str) -> str:
    for character in '\\"$':
        text = text.replace(character, f"\\{character}")
    return text
