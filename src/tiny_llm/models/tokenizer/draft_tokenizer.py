"""Comparison of the draft model's tokenizer with the target's."""

from typing import Any

from ...errors import UserError, short_repr

# Text that tokenizers with the same vocabulary may encode differently: contractions, digits,
# whitespace, code, several scripts, a decomposed letter and a special token.
SAMPLE_TEXT = (
    "It's the 1234567th test, isn't IT?\n\n    def f(x):\n\treturn x ** 2  # naïve  \r\n"
    "Größe e\u0301 数学、こんにちは Привет مرحبا 😀👍🏽 <|im_start|>"
)


def check_same_vocabulary(draft_tokenizer: Any, tokenizer: Any) -> None:
    """Checks that the draft and target tokenizers have the same vocabulary.

    Skips tokenizers without `get_vocab`.

    Raises:
        UserError: the vocabularies differ.
    """
    if not (hasattr(draft_tokenizer, "get_vocab") and hasattr(tokenizer, "get_vocab")):
        return
    drafts, targets = draft_tokenizer.get_vocab(), tokenizer.get_vocab()
    if drafts == targets:
        return
    token, token_id = min(drafts.items() ^ targets.items(), key=lambda item: item[1])
    raise UserError(
        "the draft model's tokenizer differs from the target's: they have "
        f"{len(drafts)} and {len(targets)} tokens, and first differ at token {token_id} "
        f"({token!r}); draft and target must share one vocabulary."
    )


def check_same_tokenizer(draft_tokenizer: Any, tokenizer: Any, prompt: object = "") -> None:
    """Checks that the tokenizers agree in vocabulary, encoding and end tokens.

    Args:
        prompt: text to compare encodings on, in addition to `SAMPLE_TEXT`.
    """
    check_same_vocabulary(draft_tokenizer, tokenizer)
    pair = (draft_tokenizer, tokenizer)
    if not all(hasattr(each, "get_vocab") for each in pair):
        return
    draft_ends, ends = (sorted(getattr(each, "eos_token_ids", None) or ()) for each in pair)
    if draft_ends != ends:
        raise UserError(
            f"the draft model's end tokens are {draft_ends} and the target's {ends}; draft and "
            "target must have the same end tokens."
        )
    for text in (SAMPLE_TEXT, prompt):
        if isinstance(text, str):
            draft_ids, ids = (list(each.encode(text)) for each in pair)
            if draft_ids != ids:
                raise UserError(
                    "the draft model's tokenizer differs from the target's: they encode "
                    f"{short_repr(text)} differently, as {len(draft_ids)} and {len(ids)} tokens; "
                    "draft and target must share one tokenizer."
                )
