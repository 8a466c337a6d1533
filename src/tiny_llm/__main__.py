"""Entry point for `python -m tiny_llm COMMAND`, equivalent to `tiny-llm COMMAND`."""

import sys

from .cli.entrypoint import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tiny_llm"))
