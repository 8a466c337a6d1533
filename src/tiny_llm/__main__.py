"""`python -m tiny_llm COMMAND`: what `tiny-llm COMMAND` does."""

import sys

from .cli.entrypoint import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tiny_llm"))
