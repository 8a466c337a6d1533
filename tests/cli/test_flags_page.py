"""The book's command reference lists exactly the flags of the commands."""

import re

from tiny_llm.agent.__main__ import make_parser as make_agent_parser
from tiny_llm.cli.entrypoint import COMMANDS, _root_parser, command_module
from tools.book import PAGES
from tools.book.expand import Expander

PAGE = Expander().expand(PAGES / "commands.md")
PARSERS = [
    make_agent_parser("agent"),
    _root_parser("tiny-llm"),
    *(command_module(command).make_parser(command) for command in COMMANDS),
]
FLAGS = {
    flag
    for parser in PARSERS
    for action in parser._actions
    for flag in action.option_strings
    if flag.startswith("--")
}


def test_every_flag_is_documented():
    assert {"--model", "--tp", "--kv-cache-bytes", "--allowed-host"} <= FLAGS
    missing = {flag for flag in FLAGS if not re.search(rf"{flag}\b(?!-)", PAGE)}
    assert not missing, f"book/pages/commands.md does not list {sorted(missing)}"


def test_every_documented_flag_exists():
    unknown = set(re.findall(r"`(--[a-z][a-z-]+)", PAGE)) - FLAGS
    assert not unknown, f"no command has the flags {sorted(unknown)}"
