"""Renders terminal output of `main` and `batch-main` as SVG, for the README.

`./pdmw run python -m tools.terminal_screenshot` regenerates the SVG. It has the final output of
`main` and, of several `batch-main` runs, the live view's frame with the most decoding requests.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "book" / "assets" / "terminal.svg"
COLUMNS, ROWS = 100, 40
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

MAIN = './pdmw run main --prompt "Why is decode slow?"'
BATCH = "./pdmw run batch-main --draft-model demo-draft --kv-cache-bytes 13000000"
BATCH_RUNS = 12  # several, because a run of 0.2 s draws only two or three frames

_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


@dataclass
class Terminal:
    """Minimal terminal emulator: lines, cursor up, erase line.

    `lines` include color escape sequences; `frames` are the lines before each redraw.
    """

    lines: list[str] = field(default_factory=lambda: [""])
    frames: list[list[str]] = field(default_factory=list)
    _row: int = 0
    _is_drawing: bool = False

    def feed(self, output: str) -> None:
        """Processes output, which must not end inside a control sequence."""
        end = 0
        for match in _CONTROL.finditer(output):
            self._write(output[end : match.start()])
            end = match.end()
            arguments, control = match.groups()
            if control == "m":
                self.lines[self._row] += match[0]
            elif control in "AK":
                if self._is_drawing:
                    self.frames.append(list(self.lines))
                    self._is_drawing = False
                if control == "A":
                    self._row = max(0, self._row - int(arguments or 1))
                else:
                    self.lines[self._row] = ""
        self._write(output[end:])

    def _write(self, text: str) -> None:
        for line in re.split(r"(\n)", text.replace("\r", "")):
            if line == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
            elif line:
                self.lines[self._row] += line
                self._is_drawing = True


def run_in_terminal(command: str) -> Terminal:
    """Runs a command in a `COLUMNS`×`ROWS` terminal; raises `CalledProcessError`."""
    parent_fd, child_fd = pty.openpty()
    fcntl.ioctl(child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment["TINY_LLM_MINE"] = str(ROOT / "build" / "no-learners-tree")
    for variable in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(variable, None)
    process = subprocess.Popen(
        shlex.split(command),
        cwd=ROOT,
        env=environment,
        stdin=child_fd,
        stdout=child_fd,
        stderr=child_fd,
    )
    os.close(child_fd)
    output = b""
    while True:
        try:
            chunk = os.read(parent_fd, 65536)
        except OSError:  # EOF on Linux; macOS returns empty bytes
            chunk = b""
        if not chunk:
            break
        output += chunk
    os.close(parent_fd)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, output)
    terminal = Terminal()
    terminal.feed(output.decode())
    return terminal


def draw(screens: Iterable[tuple[str, list[str]]], title: str) -> str:
    """SVG of commands and their output, without external resources."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), highlight=False)
    for number, (command, lines) in enumerate(screens):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        for line in lines:
            text = Text.from_ansi(line)
            for part in text.divide(range(COLUMNS, len(text), COLUMNS)):
                console.print(part, soft_wrap=True)
    svg = console.export_svg(title=title, theme=DIMMED_MONOKAI, unique_id="terminal")
    svg = re.sub(r"@font-face\s*{.*?}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]*;", f"font-family: {FONT};", svg)


def main() -> None:
    """Runs the commands and writes the SVG."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    args = parser.parse_args()
    answer = run_in_terminal(MAIN).lines
    frames = [frame for _ in range(BATCH_RUNS) for frame in run_in_terminal(BATCH).frames]
    texts = ["\n".join(lines) for lines in frames]
    fullest = max(range(len(frames)), key=lambda i: (texts[i].count("decoding"), len(texts[i])))
    screens = [(MAIN, answer), (BATCH, frames[fullest])]
    trimmed = [(command, "\n".join(lines).rstrip().split("\n")) for command, lines in screens]
    args.output.write_text(draw(trimmed, "tiny-llm"), encoding="utf-8")


if __name__ == "__main__":
    main()
