"""`tokenizer.json` loader that avoids heap fragmentation.

The `tokenizers` library parses the file into a tree of small objects, builds the vocabulary while
the tree is live, and then frees the tree. Freed blocks are interleaved with live ones, so little
memory returns to the system. Passing the vocabulary and merges as Python objects avoids this: the
BPE model is built first, then the small remainder of the file is parsed. In between, a garbage
collection clears Python's free lists, because each of their thousands of freed tuples would pin the
memory around it. After heap trimming (`models/memory.py`), Qwen3's tokenizer takes 34 MB instead
of 48 MB; live objects take 32 MB.
"""

import gc
import json
from pathlib import Path
from typing import Any

import tokenizers

# Supported BPE model fields besides vocabulary and merges.
BPE_FIELDS = {
    *("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"),
    *("byte_fallback", "ignore_merges"),
}


class UnsupportedFormatError(Exception):
    """The file's layout is not supported by this loader."""


def load_tokenizer_json(file: Path, content: dict[str, Any]) -> tokenizers.Tokenizer:
    """Same as `tokenizers.Tokenizer.from_file`, with less memory for BPE models.

    `content`, the parsed `file`, is unusable afterwards.

    Raises:
        Exception: the library's error for an invalid file.
    """
    try:
        return _build_tokenizer(content)
    except Exception:  # `from_file` may support the file; otherwise it raises the library's error
        content.clear()
        return tokenizers.Tokenizer.from_file(str(file))


def _build_tokenizer(content: dict[str, Any]) -> tokenizers.Tokenizer:
    """Builds a tokenizer around a stand-in model, which the BPE model replaces."""
    model, added = content.pop("model"), content["added_tokens"]
    # The stand-in's vocabulary has the added tokens, because parsing looks up their ids in it.
    known = _added_token_ids([token["content"] for token in added], model["vocab"])
    bpe = _bpe_model(model)
    _clear_free_lists()
    content["model"] = {"type": "BPE", "vocab": known, "merges": []}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.model = bpe
    return tokenizer


def _clear_free_lists() -> None:
    """Clears Python's free lists; the collection it runs traverses no objects."""
    gc.freeze()  # exempts all objects from the collection, which would take long to traverse them
    gc.collect()
    gc.unfreeze()


def _bpe_model(model: dict[str, Any]) -> tokenizers.models.BPE:
    """Builds the BPE model; frees the parsed vocabulary and merges."""
    vocab, merges = model.pop("vocab"), model.pop("merges")
    if model.pop("type") != "BPE" or not model.keys() <= BPE_FIELDS:
        raise UnsupportedFormatError
    pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in merges]
    merges.clear()
    given = {name: value for name, value in model.items() if value is not None}
    return tokenizers.models.BPE(vocab=vocab, merges=pairs, **given)


def _added_token_ids(added: list[str], vocab: dict[str, int]) -> dict[str, int]:
    """Ids that the library assigns to added tokens; the file's ids may differ."""
    ids: dict[str, int] = {}
    next_id = len(vocab)  # next id for a token outside the vocabulary
    for token in added:
        if token not in ids:
            ids[token] = vocab.get(token, next_id)
            next_id = max(next_id, ids[token] + 1)
    return ids
