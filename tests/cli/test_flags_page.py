"""The book's command reference lists exactly the flags of the commands."""

import re
from pathlib import Path

import tiny_llm.agent
import tiny_llm.cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "book" / "pages" / "commands.md").read_text(encoding="utf-8")
SOURCES = "".join(
    file.read_text(encoding="utf-8")
    for package in (tiny_llm.cli, tiny_llm.agent)
    for file in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
)


def test_every_flag_is_documented():
    declarations = re.findall(r'"((?:--[a-z][a-z-]+ ?)+)', SOURCES)  # e.g. "--flag --alias METAVAR"
    flags = {flag for declaration in declarations for flag in declaration.split()}
    assert {"--model", "--tp"} <= flags
    missing = {flag for flag in flags if not re.search(rf"{flag}\b(?!-)", PAGE)}
    assert not missing, f"book/pages/commands.md does not list {sorted(missing)}"


def test_every_documented_flag_exists():
    documented = set(re.findall(r"`--(?:no-)?([a-z][a-z-]+)", PAGE)) - {"help"}
    source_forms = {flag: (f"--{flag}", flag.replace("-", "_")) for flag in documented}
    unknown = {
        flag for flag, forms in source_forms.items() if not any(form in SOURCES for form in forms)
    }
    assert not unknown, f"no command has the flags {sorted(unknown)}"
