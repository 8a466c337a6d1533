"""Tokenizer from GGUF metadata: byte-level BPE (`gpt2`), SentencePiece (`llama`, `gemma4`)."""

from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ..tokenizer.tokenizer import Tokenizer, raise_library_error
from .reader import GGUFFile

# Token types in `tokenizer.ggml.token_type`.
CONTROL, USER_DEFINED, BYTE = 3, 4, 6

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LEADING = r"[^\r\n\p{L}\p{N}]?"  # of a word
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTIONS}|{_LEADING}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

KINDS = ("gpt2", "llama", "gemma4")  # values of `tokenizer.ggml.model`
# Regular expressions that split a text one after the other -> values of `tokenizer.ggml.pre`.
SPLITS = {
    (_GPT2,): "gpt-2 mpt olmo phi-2 jais exaone4 granite-docling",
    (r"\p{N}", _GPT2): "smollm starcoder refact command-r codeshell exaone minerva-7b",
    (_QWEN2,): "qwen2 deepseek-r1-qwen stablelm2 hunyuan",
    (_QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"\p{L}\p{N}]+", r"\p{L}\p{M}\p{N}]+"),): (
        "qwen35"
    ),
    (_QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),): (
        "llama-bpe llama3 llama-v3 smaug-bpe dbrx falcon3 pixtral glm4 chatglm-bpe lfm2"
    ),
    (
        rf"{_LEADING}{_UPPER}*{_LOWER}+|{_LEADING}{_UPPER}+{_LOWER}*|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    ): "tekken",
    (
        rf"{_LEADING}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEADING}{_UPPER}+{_LOWER}*"
        rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    ): "gpt-4o llama4 kanana2",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"): "deepseek-coder",
    (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"): "falcon",
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"): "default",
}
PRE_TOKENIZERS = {name: splits for splits, names in SPLITS.items() for name in names.split()}
IGNORE_MERGES = (
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "pixtral",
    "lfm2",
    "tekken",
    "gpt-4o",
)
NFC = ("qwen2", "qwen35", "deepseek-r1-qwen")  # as in their tokenizer.json; llama.cpp omits this

# Control tokens that end a turn or text, although many files list only one of them as EOS.
END_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"),
    *("<end_of_turn>", "<turn|>", "<|tool_response>", "<|return|>", "<|call|>"),
)


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Builds the tokenizer, with the file's chat templates.

    Raises:
        ValueError: the file has no tokenizer, or one of an unsupported kind.
        UserError: the `tokenizers` library rejects the vocabulary.
    """
    tokens, ggml = file.strings("tokenizer.ggml.tokens"), "tokenizer.ggml."
    kind = file.metadata.get(f"{ggml}model")
    if not tokens or kind not in KINDS:
        raise ValueError(f"its tokenizer is of kind {kind}; supported kinds are {', '.join(KINDS)}")
    is_bpe = kind == "gpt2"
    try:
        tokenizer = _byte_level(file, tokens) if is_bpe else _sentencepiece(file, tokens)
    except BaseException as error:
        raise_library_error("the tokenizer is invalid", error)
    types = file.metadata.get(f"{ggml}token_type", [])
    added = [
        AddedToken(token, special=type_ == CONTROL, normalized=False)
        for token, type_ in zip(tokens, types, strict=False)
        if type_ in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    named = {
        name: file.metadata.get(f"{ggml}{name}_token_id") for name in ("bos", "eos", "eot", "eom")
    }
    settings: dict[str, Any] = {
        f"{name}_token": tokens[index] for name, index in named.items() if index is not None
    }
    if file.metadata.get(f"{ggml}add_bos_token", not is_bpe) and "bos_token" in settings:
        bos = settings["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, named["bos"])]
        )
    settings["chat_template"] = [
        {"name": key.removeprefix("tokenizer.chat_template")[1:] or "default", "template": template}
        for key, template in file.metadata.items()
        if f"{key}.".startswith("tokenizer.chat_template.")
    ] or None
    ends = {index for name, index in named.items() if name != "bos" and index is not None}
    ends |= {tokens.index(each.content) for each in added if each.content in END_TOKENS}
    return Tokenizer(file.path, tokenizer, settings, ends)


def _byte_level(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"its pre-tokenizer, {str(pre)[:60]}, is not supported; supported ones are "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(BPE(vocab, _merges(file), ignore_merges=pre in IGNORE_MERGES))
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in PRE_TOKENIZERS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _merges(file: GGUFFile) -> list[tuple[str, str]]:
    pairs = (merge.partition(" ") for merge in file.strings("tokenizer.ggml.merges"))
    return [(left, right) for left, _, right in pairs]


def _sentencepiece(file: GGUFFile, tokens: list[str]) -> tokenizers.Tokenizer:
    """BPE with Gemma 4's merges, or those derived from the scores of tokens."""
    vocab = {token: index for index, token in enumerate(tokens)}
    # Ollama's files of Gemma 4 have kind `llama`.
    has_merges = "gemma4" in (file.metadata.get(f"tokenizer.ggml.{x}") for x in ("model", "pre"))
    pairs = _merges(file) if has_merges else _merges_from_scores(file, tokens, vocab)
    tokenizer = tokenizers.Tokenizer(BPE(vocab, pairs, byte_fallback=True, fuse_unk=True))
    adds_space = not has_merges and file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    prefix = [normalizers.Prepend("▁")] if adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _merges_from_scores(
    file: GGUFFile, tokens: list[str], vocab: dict[str, int]
) -> list[tuple[str, str]]:
    """A merge for each way to split a token into two, in descending order of scores."""
    scores = file.metadata.get("tokenizer.ggml.scores", [])
    merges = [
        (-score, index, (token[:split], token[split:]))
        for index, (token, score) in enumerate(zip(tokens, scores, strict=True))
        for split in range(1, len(token))
        if token[:split] in vocab and token[split:] in vocab
    ]
    return [pair for *_, pair in sorted(merges, key=lambda merge: merge[:2])]
