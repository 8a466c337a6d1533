"""Formats the C++ and Metal sources with clang-format, or checks them."""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.cpp", "*.h", "*.metal")


def main() -> int:
    """Exit status: 0; 1 if clang-format fails or --check finds a difference."""
    parser = argparse.ArgumentParser(prog="format_cpp", description=__doc__)
    parser.add_argument("--check", action="store_true", help="check without writing")
    args = parser.parse_args()
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PATTERNS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if not files:
        return 0
    mode = ["--dry-run", "--Werror"] if args.check else ["-i"]
    return subprocess.run(["clang-format", *mode, *files], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
