"""Sandboxed encoding, for tokenizers with unsafe components.

These tokenizers (see `tokenizer_json.py`) run in a separate process with a memory limit and a time
limit that grows with the text, so a text cannot make the server hang or run out of memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..checkpoint.safe_io import ModelError
from .sandbox import SandboxedProcess
from .tokenizer_json import TOKENIZER_FILE, unsafe_component

ENCODER = Path(__file__).with_name("encode_handler.py")
LOAD_TIMEOUT_SECONDS = 10.0  # the largest real tokenizer takes one second
BASE_TIMEOUT_SECONDS = 3.0  # time limit for a short text
MIN_CHARACTERS_PER_SECOND = 200_000  # assumed encoding speed of a slow machine
MAX_MEMORY_BYTES = 2**30  # a vocabulary of 250,000 tokens takes a third of it
MAX_RESPONSE_BYTES = 2**27


class SandboxedEncoder:
    """Thread-safe encoder with time and memory limits; runs one call at a time.

    `component` describes the file's unsafe component in error messages.

    Raises:
        ValueError: the `tokenizers` library cannot load the file within the limits.
    """

    def __init__(self, file: Path, component: str):
        self._component = component
        self._process = SandboxedProcess(
            ENCODER,
            [str(file)],
            BASE_TIMEOUT_SECONDS,
            MAX_RESPONSE_BYTES,
            MAX_MEMORY_BYTES,
            LOAD_TIMEOUT_SECONDS,
        )
        self._process.start()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encodes a text; UserError if a limit is exceeded or the library fails."""
        seconds = BASE_TIMEOUT_SECONDS + len(text) / MIN_CHARACTERS_PER_SECOND
        payload = {"text": text, "special": add_special_tokens}
        try:
            ids: list[int] = self._process.request(payload, seconds)["ids"]
        except ValueError as error:
            raise UserError(
                f"the text cannot be encoded with {self._component} of tokenizer.json: {error}; "
                "send a different text, or use a model with a common tokenizer.json."
            ) from error
        return ids


def sandboxed_encoder(folder: Path, content: Mapping[str, Any]) -> SandboxedEncoder | None:
    """Creates an encoder if the tokenizer has unsafe components, else None.

    Raises:
        ModelError: the `tokenizers` library cannot load the tokenizer within the limits.
    """
    component = unsafe_component(content)
    if component is None:
        return None
    try:
        return SandboxedEncoder(folder / TOKENIZER_FILE, component)
    except ValueError as error:
        raise ModelError(
            f"{folder / TOKENIZER_FILE} with {component} cannot be loaded: {error}; download it "
            "again."
        ) from error
