"""Tokenizer with `tokenizer.json`'s ids, and `mlx_lm`'s interface.

Uses the `tokenizers` library directly: importing `transformers` takes seconds, and for many
tokenizer classes it replaces parts of `tokenizer.json`, which changes the token ids.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from ...errors import UserError
from ..checkpoint.tokenizer_config import SPECIAL_TOKEN_FIELDS, token_text
from .chat_template import choose_template, find_chat_template, render_template
from .detokenizer import StreamingDetokenizer, TokenDecoder
from .think_tags import DEFAULT_TAGS, think_tags

# Disables the library's threads, which do not speed up batches of one and cause warnings in forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# `apply_chat_template` arguments that only `transformers` implements.
TRANSFORMERS_ONLY_ARGUMENTS = {
    *("chat_template", "continue_final_message", "max_length", "padding"),
    *("return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens"),
    *("tokenizer_kwargs", "truncation"),
}


class Tokenizer:
    """Drop-in replacement for the tokenizer from `mlx_lm.load`.

    Raises:
        ValueError: the decoder of `tokenizer.json` is not supported.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        eos_token_ids: set[int],
    ):
        self.eos_token_ids = eos_token_ids
        self.chat_template = find_chat_template(folder, config)
        self._tokenizer = tokenizer
        self._decoder = TokenDecoder.of(tokenizer.decoder)
        self._named_tokens = {
            name: token_text(config[name])
            for name in SPECIAL_TOKEN_FIELDS
            if config.get(name) is not None
        }
        self._added_tokens = {
            token_id: self._decoder.added_to_bytes(token.content)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    @property
    def has_thinking(self) -> bool:
        """Whether the chat template has tags of its own, or the vocabulary the usual ones."""
        is_known = all(self._tokenizer.token_to_id(tag) is not None for tag in DEFAULT_TAGS)
        return is_known or think_tags(self) != DEFAULT_TAGS

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        """The underlying `tokenizers.Tokenizer`, named as in `transformers`."""
        return self._tokenizer

    @property
    def detokenizer(self) -> StreamingDetokenizer:
        return StreamingDetokenizer(self.token_bytes, self._decoder.strips_space)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token id; empty for padding ids beyond the vocabulary."""
        if token in self._added_tokens:
            return self._added_tokens[token]
        return self._decoder.to_bytes(self._tokenizer.id_to_token(token) or "")

    def encode(self, text: str, add_special_tokens: bool = True, **others: Any) -> list[int]:
        """Encodes a text, in which special tokens are recognized; UserError if the library fails.

        `others` are arguments that only `transformers` implements.
        """
        options = {"add_special_tokens": add_special_tokens}
        if others:
            return self.mlx_lm.encode(text, **options, **others)
        try:
            # A batch of one, because only batch calls release the GIL.
            (encoding,) = self._tokenizer.encode_batch([text], **options)
        except BaseException as error:
            raise_library_error("the tokenizer cannot encode the text", error)
        return encoding.ids

    def decode(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False, **others: Any
    ) -> str:
        """Decodes token ids; invalid UTF-8 becomes U+FFFD."""
        if others:
            return self.mlx_lm.decode(ids, skip_special_tokens=skip_special_tokens, **others)
        ids = [ids] if isinstance(ids, int) else [int(token) for token in ids]
        (text,) = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return text

    def get_vocab(self) -> dict[str, int]:
        """Vocabulary: token (spelled as in `tokenizer.json`) -> id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def add_eos_token(self, token: str | int) -> None:
        is_id = str(token).isdecimal()
        token_id = int(token) if is_id else self._tokenizer.token_to_id(str(token))
        if token_id is None:
            raise ValueError(f"'{token}' is not in the tokenizer's vocabulary")
        self.eos_token_ids.add(token_id)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        """Renders a conversation with the chat template.

        Args:
            conversation: messages {"role": …, "content": …}, plus other keys the template reads.
            variables: template variables such as `add_generation_prompt` and `enable_thinking`
                (default: `has_thinking`); other arguments as in `transformers`.

        Returns:
            Token ids, or the text if `tokenize` is False.

        Raises:
            ValueError: there is no chat template or no message; see also `render_template`.
        """
        variables["tools"] = tools
        if not self._can_render(conversation, variables):
            return self.mlx_lm.apply_chat_template(conversation, tokenize=tokenize, **variables)
        assert self.chat_template is not None
        variables = {
            **self._named_tokens,
            "documents": None,
            "add_generation_prompt": False,
            "enable_thinking": self.has_thinking,
            **variables,
        }
        template = choose_template(self.chat_template, has_tools=tools is not None)
        text = render_template(template, conversation, **variables)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        return getattr(self.mlx_lm, name)

    @cached_property
    def mlx_lm(self) -> Any:
        """The same tokenizer as `mlx_lm`'s class, with all features of `transformers`."""
        from mlx_lm.tokenizer_utils import TokenizerWrapper  # takes seconds
        from transformers import PreTrainedTokenizerFast

        inner = PreTrainedTokenizerFast(
            tokenizer_object=self._tokenizer,
            chat_template=self.chat_template,
            clean_up_tokenization_spaces=False,
            **self._named_tokens,
        )
        return TokenizerWrapper(inner, lambda _: self.detokenizer, self.eos_token_ids)

    def _can_render(self, messages: Any, variables: Mapping[str, Any]) -> bool:
        return (
            self.chat_template is not None
            and not TRANSFORMERS_ONLY_ARGUMENTS & set(variables)
            and isinstance(messages, Sequence)
            and bool(messages)
            and all(isinstance(message, dict) for message in messages)
            and all(isinstance(tool, dict) for tool in variables["tools"] or ())
        )


def raise_library_error(failure: str, error: BaseException) -> NoReturn:
    """Raises UserError, beginning with `failure`, for an error of `tokenizers`, else `error`.

    The library's errors are plain Exceptions; its panics are a separate BaseException.
    """
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        raise error
    reason = " ".join(str(error).split()).rstrip(".")
    raise UserError(f"{failure}: {reason}.") from error
