"""A small language and vocabulary; brute force finds the allowed tokens.

Texts have several tokenizations, but wherever a grammar forces text, exactly one token can follow.
"""

import re
from functools import cache
from pathlib import Path

import tokenizers

from tiny_llm.models.tokenizer.tokenizer import Tokenizer

TOKENS = ["a", "b", "c", "ab", "ba", "aa", "bc", "<|end|>"]
END, LANGUAGE = 7, r"[ab]{1,3}c?"
V = len(TOKENS)


def tiny_tokenizer() -> Tokenizer:
    vocab = {token: index for index, token in enumerate(TOKENS)}
    merges = [(token[0], token[1]) for token in TOKENS[3:7]]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([TOKENS[END]])
    return Tokenizer(Path(), backend, {}, {END})


@cache
def allowed_tokens(text: str) -> frozenset[int]:
    """Tokens that may follow a text, found by enumerating the language."""
    letters = ["", "a", "b", "c"]
    endings = {x + y + z + w for x in letters for y in letters for z in letters for w in letters}
    tokens = {
        token
        for token, piece in enumerate(TOKENS[:END])
        if any(re.fullmatch(LANGUAGE, text + piece + ending) for ending in endings)
    }
    return frozenset(tokens | ({END} if re.fullmatch(LANGUAGE, text) else set()))
