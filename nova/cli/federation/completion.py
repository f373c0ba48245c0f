"""Scripts that complete commands and options of novactl in a shell, generated from its parser."""

import argparse
from collections.abc import Iterator

from nova.cli.federation.arguments import parser


def script(shell: str) -> str:
    """Return the script for bash or zsh."""
    cases = "\n".join(f"        {path!r}) words={' '.join(sorted(words))!r} ;;"
                      for path, words in _words("", parser("novactl")))
    bash = f"""\
_novactl() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} path= words= part index
    for ((index = 1; index < COMP_CWORD; index++)); do
        part=${{COMP_WORDS[index]}}
        case $part in -*) continue ;; esac
        case "$path $part" in
            {'|'.join(repr(path) for path, _words_of in _words("", parser("novactl")) if path)}) path="$path $part" ;;
        esac
    done
    case $path in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -F _novactl novactl kubectl-nova
"""
    return bash if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{bash}"


def _words(path: str, command: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each command, such as " install agent", and the words that may follow."""
    options = [text for action in command._actions for text in action.option_strings if text.startswith("--")]
    commands: dict[str, argparse.ArgumentParser] = {}
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands.update(action.choices)
        elif action.choices and not action.option_strings:
            options += [str(choice) for choice in action.choices]
    yield path, [*commands, *options]
    for name, subcommand in commands.items():
        yield from _words(f"{path} {name}", subcommand)
