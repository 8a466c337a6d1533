"""`tokenizer.json`, read so that its vocabulary lies densely in memory.

The `tokenizers` library reads the file into a tree of small objects, makes the vocabulary while the
tree is still there, and frees the tree. What is freed lies between what stays, so the system gets
little of it back. Vocabulary and merges that are given to the library as lists leave no such holes.
So the model is made first, and the small rest of the file is read around it. Python keeps thousands
of freed pairs for later use, and with each the megabyte around it, until it collects garbage. So it
collects it before it makes what stays. For 151,643 tokens and as many merges, as Qwen3 has them,
34 MB stay instead of 48, after what is free was given back (`memory.py`); 32 are in use.
"""

import gc
import json
from pathlib import Path
from typing import Any

import tokenizers

# What `tokenizer.json` may say of a model of byte-pair encoding besides its vocabulary and merges.
BPE_FIELDS = {
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
}


class UnsupportedFormatError(Exception):
    """The file is not of the form that is read here."""


def load_tokenizer_json(file: Path) -> tokenizers.Tokenizer:
    """What `tokenizers.Tokenizer.from_file` returns, in less memory where it can be.

    Args:
        file: a `tokenizer.json`.

    Raises:
        Exception: the library's, for a file that it does not read.
    """
    try:
        return _build_tokenizer(json.loads(file.read_bytes()))
    except Exception:  # whatever is wrong, the library says it, or reads the file nevertheless
        return tokenizers.Tokenizer.from_file(str(file))


def _build_tokenizer(content: dict[str, Any]) -> tokenizers.Tokenizer:
    """A tokenizer of a model that is made first, and of what else the file says."""
    model, added = content.pop("model"), content["added_tokens"]
    # The ids of added tokens are looked up in the model while the rest is read.
    known = _added_token_ids([token["content"] for token in added], model["vocab"])
    made = _bpe_model(model)
    _clear_free_lists()
    content["model"] = {"type": "BPE", "vocab": known, "merges": []}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.model = made
    return tokenizer


def _clear_free_lists() -> None:
    """What a collection of garbage does besides, without looking at every object there is."""
    gc.freeze()  # none is looked at
    gc.collect()
    gc.unfreeze()


def _bpe_model(model: dict[str, Any]) -> tokenizers.models.BPE:
    """The vocabulary and the merges, which are emptied here."""
    vocab, merges = model.pop("vocab"), model.pop("merges")
    if model.pop("type") != "BPE" or not model.keys() <= BPE_FIELDS:
        raise UnsupportedFormatError
    pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in merges]
    merges.clear()
    given = {name: value for name, value in model.items() if value is not None}
    return tokenizers.models.BPE(vocab=vocab, merges=pairs, **given)


def _added_token_ids(added: list[str], vocab: dict[str, int]) -> dict[str, int]:
    """The ids that the library gives to added tokens, which need not be those that a file names."""
    ids: dict[str, int] = {}
    behind = len(vocab)  # of what is in no vocabulary
    for token in added:
        if token not in ids:
            ids[token] = vocab.get(token, behind)
            behind = max(behind, ids[token] + 1)
    return ids
