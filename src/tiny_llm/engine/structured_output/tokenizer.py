"""GrammarTokenizer: encodes text for llguidance, never as added tokens.

Where a grammar forces text, llguidance allows only the first token of that text's encoding. The
encoding must not contain added tokens such as `<think>`, because grammars distinguish them from
text.
"""

import json

import tokenizers

from ...models.tokenizer.tokenizer import decode_byte_level


class GrammarTokenizer:
    """Byte-level tokenizer with the interface that `LLTokenizer` expects."""

    is_tokenizer_wrapper = True

    def __init__(self, backend: tokenizers.Tokenizer, vocab_size: int, eos_token_id: int):
        added = backend.get_added_tokens_decoder()
        self.tokens = [  # bytes of each token in the vocabulary, by token id
            added[token].content.encode()
            if token in added
            else decode_byte_level(backend.id_to_token(token) or "")
            for token in range(vocab_size)
        ]
        self.special_token_ids = special_token_ids(backend)
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self._backend = _without_added_tokens(backend)

    def __call__(self, text: str) -> list[int]:
        """Encodes text; the text of an added token becomes ordinary tokens."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    return isinstance(backend.decoder, tokenizers.decoders.ByteLevel)


def special_token_ids(backend: tokenizers.Tokenizer) -> list[int]:
    return [
        token_id
        for token_id, token in backend.get_added_tokens_decoder().items()
        if token.special or (token.content.startswith("<") and token.content.endswith(">"))
    ]


def special_token_expressions(backend: tokenizers.Tokenizer) -> dict[str, str]:
    """Returns Lark expressions for the special tokens, by token text."""
    added = backend.get_added_tokens_decoder()
    return {added[token].content: f"<[{token}]>" for token in special_token_ids(backend)}


def _without_added_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Returns a copy that encodes the text of added tokens as ordinary text."""
    text, key = backend.to_str(), '"added_tokens":'
    # Parse only the list of added tokens, because the entire JSON takes too much memory.
    start = text.index(key) + len(key)
    _, end = json.JSONDecoder().raw_decode(text, start)
    return tokenizers.Tokenizer.from_str(f"{text[:start]}[]{text[end:]}")
