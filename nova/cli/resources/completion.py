"""The completion command: scripts that complete commands and options in a shell."""

import argparse
import shlex

from nova.cli import shell
from nova.cli.client import Nova
from nova.cli.commands import COMMANDS, PLATFORM, load
from nova.cli.declare import Declared, arg, doing

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


@doing(arg("shell", choices=("bash", "zsh", "fish"), nargs="?", default="bash"))
def completion(_nova: Nova, args: argparse.Namespace) -> None:
    """Print a script that completes commands and options in a shell.

    bash: source <(nova completion bash); zsh: source <(nova completion zsh); fish: nova completion fish | source
    """
    print(script(args.shell))


def script(name: str) -> str:
    """Return the script for bash, zsh or fish."""
    declared = _declared()
    words: dict[str, list[str]] = {}  # first word of commands: their second words
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
        texts = [f"{command}:" + text.replace(":", "\\:") for command, text in helps.items()]
        commands = "\n".join(f"        {shlex.quote(text)}" for text in texts)
        others = {command: f"compadd -- {' '.join(seconds)}" if seconds else "_files"
                  for command, seconds in words.items()}
        cases = "\n".join(f"    {command}) if [[ $PREFIX == -* ]]; then compadd -- {' '.join(options[command])}; "
                          f"else {others[command]}; fi ;;" for command in helps)
        return _ZSH.format(commands=commands, cases=cases)
    cases = "\n".join(f"    {command}) COMPREPLY=($(compgen -W \"{' '.join(options[command])}\" -- \"$word\")) ;;"
                      for command in helps)
    return _BASH.format(names=" ".join(helps), cases=cases)


def _declared() -> dict[str, Declared]:
    """Return all commands by name, without those of novad if nova[novad] is not installed. A command of both services
    (``update``) has the options of both."""
    commands = {command: load(command) for command in COMMANDS}
    try:
        platform = {command: load(command, PLATFORM) for command in PLATFORM}
    except ModuleNotFoundError:
        return commands
    return {**platform, **commands, **{f"{name} ": declared for name, declared in platform.items() if name in commands}}


def _options(command: str, declared: Declared) -> list[str]:
    actions = shell.parser_of(command, declared)._actions
    return sorted(word for action in actions for word in action.option_strings if word.startswith("--"))


def _fish(helps: dict[str, str], options: dict[str, list[str]]) -> str:
    escapes = str.maketrans({character: f"\\{character}" for character in '\\"$'})
    lines = ["complete -c nova -f"]
    for command, text in helps.items():
        lines.append(f"complete -c nova -n __fish_use_subcommand -a {command} -d \"{text.translate(escapes)}\"")
        lines += [f"complete -c nova -n '__fish_seen_subcommand_from {command}' "
                  f"{f'-l {word[2:]}' if word.startswith('--') else f'-a {word}'}" for word in options[command]]
    return "\n".join(lines)
