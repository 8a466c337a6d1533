"""GrammarCompiler: cached compilation of structured outputs by llguidance.

`llguidance` is imported on first use. Compiling a typical schema takes well below a millisecond.
Hostile grammars are rejected with an error. Their length is limited here; depth, states and steps
by the library; compile time by a trial compilation in a separate process that can be killed
(`compile_probe.py`).
"""

import json
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError, short_repr
from ...models.tokenizer.sandbox import SandboxedProcess
from ..inputs.structured_outputs import StructuredOutputs, ToolCalls
from .grammar import ThinkingState, build_grammar, special_token_names

MAX_GRAMMAR_CHARS = 2**16
MAX_CACHED_GRAMMARS = 128
COMPILE_TIMEOUT_SECONDS = 2.0
COMPILE_PROBE = Path(__file__).with_name("compile_probe.py")
# A quarter of the library's defaults, which assume an otherwise idle machine.
PARSER_LIMITS = {
    "initial_lexer_fuel": 250_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 12_500,
    "max_lexer_states": 50_000,
    "max_grammar_size": 125_000,
    "verbose_errors": False,
}


class StructuredOutputGrammar:
    """Matcher state of one completion.

    Args:
        matcher: an `llguidance.LLMatcher`, owned by this object.
        vocab_size: V of the tokenizer.
        eos_token_ids: end tokens.
        text_eos_token_ids: end tokens that a grammar may also read as text.

    Attributes:
        matcher, vocab_size, text_eos_token_ids: as given. Only `accept_tokens` advances the
            matcher.
    """

    def __init__(
        self,
        matcher: Any,
        vocab_size: int,
        eos_token_ids: Collection[int],
        text_eos_token_ids: Collection[int] = (),
    ):
        self.matcher = matcher
        self.vocab_size = vocab_size
        self.text_eos_token_ids = text_eos_token_ids
        self._eos_token_ids = eos_token_ids

    def accept_tokens(self, token_ids: Sequence[int]) -> str | None:
        """Advances the matcher by accepted tokens; returns an error message or None."""
        for token in token_ids:
            if token in self.text_eos_token_ids:
                if self.matcher.is_accepting():
                    continue
                return "the grammar failed: the output is incomplete, but only an end token fits."
            # After exceeding a limit, a matcher allows the end token of an incomplete output.
            has_failed = self.matcher.is_error()
            if not has_failed and self.matcher.is_stopped() and token in self._eos_token_ids:
                continue  # complete without alternatives: the matcher has already stopped
            if has_failed or not self.matcher.consume_token(token):
                reason = _error_text(self.matcher.get_error())
                return f"the grammar failed: {reason}."
        return None

    def is_complete_after(self, draft_tokens: Sequence[int]) -> bool:
        """Returns whether output and draft tokens are complete; does not advance the matcher."""
        matcher = self.matcher.deep_copy()
        return all(map(matcher.consume_token, draft_tokens)) and bool(matcher.is_accepting())

    def fast_forward_tokens(self) -> list[int]:
        """Returns the forced next tokens, up to the first position with a choice."""
        tokens: list[int] = self.matcher.compute_ff_tokens()
        return tokens


class GrammarCompiler:
    """Compiles and caches grammars for one tokenizer. Thread-safe.

    Args:
        tokenizer: the model's tokenizer, with a `backend_tokenizer` of the `tokenizers` library.
        vocab_size: V of the model.
    """

    def __init__(self, tokenizer: Any, vocab_size: int):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._cache: OrderedDict[str, Any] = OrderedDict()  # initial matchers by grammar
        self._lock = threading.Lock()
        self._library: tuple[Any, Any] | None = None
        self._special_token_names: frozenset[str] = frozenset()
        self._text_eos_token_ids: list[int] = []

    def compile(
        self, form: StructuredOutputs | ToolCalls, thinking: ThinkingState = ThinkingState.NONE
    ) -> StructuredOutputGrammar:
        """Returns a grammar in its initial state; a cache hit takes microseconds.

        Raises:
            UserError: the grammar is invalid, too large or unsupported, or `llguidance` is not
                installed.
        """
        with self._lock:
            llguidance, tokenizer = self._load_llguidance()
        grammar = build_grammar(_gbnf_as_lark(form), thinking, self._special_token_names)
        with self._lock:
            matcher = self._cache.get(grammar)
        if matcher is None:  # unlocked: a slow grammar must not block others
            matcher = _compile(llguidance, tokenizer, grammar, self._process)
        with self._lock:
            self._cache[grammar] = matcher
            self._cache.move_to_end(grammar)
            if len(self._cache) > MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
            matcher = matcher.deep_copy()
        eos = self._tokenizer.eos_token_ids
        return StructuredOutputGrammar(matcher, self._vocab_size, eos, self._text_eos_token_ids)

    def _load_llguidance(self) -> tuple[Any, Any]:
        """Imports the library and converts the tokenizer: 1 s for 150,000 tokens."""
        if self._library is None:
            try:
                import llguidance
            except ImportError as error:
                raise UserError(
                    "structured outputs need the package llguidance, which is not installed; "
                    "install tiny-llm[structured]."
                ) from error
            backend = getattr(self._tokenizer, "backend_tokenizer", None)
            if backend is None or not self._tokenizer.eos_token_ids:
                missing = "a tokenizer.json" if backend is None else "an end token"
                raise UserError(f"structured outputs need {missing}, which the model lacks.")
            added = [token.content for token in backend.get_added_tokens_decoder().values()]
            self._special_token_names = special_token_names(added)
            self._text_eos_token_ids = _text_eos_token_ids(self._tokenizer)
            text, eos_token_ids = backend.to_str(), sorted(self._tokenizer.eos_token_ids)
            tokenizer = llguidance.LLTokenizer(
                text, n_vocab=self._vocab_size, eos_token=eos_token_ids
            )
            self._settings = tempfile.NamedTemporaryFile(  # noqa: SIM115 - lives as long as the compiler
                "w", encoding="utf-8", suffix=".json"
            )
            json.dump(
                {
                    "tokenizer": text,
                    "vocab_size": self._vocab_size,
                    "eos_token_ids": eos_token_ids,
                    "limits": PARSER_LIMITS,
                },
                self._settings,
            )
            self._settings.flush()
            self._process = SandboxedProcess(
                COMPILE_PROBE, [self._settings.name], COMPILE_TIMEOUT_SECONDS, 2**20
            )
            self._library = llguidance, tokenizer
        return self._library


def _text_eos_token_ids(tokenizer: Any) -> list[int]:
    """Returns the end tokens that a grammar can read as text or by name."""
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    return [
        token
        for token in tokenizer.eos_token_ids
        if backend.id_to_token(token) is not None and not (token in added and added[token].special)
    ]


def _gbnf_as_lark(form: StructuredOutputs | ToolCalls) -> StructuredOutputs | ToolCalls:
    """Converts a GBNF grammar to Lark; returns other structured outputs unchanged."""
    if isinstance(form, ToolCalls) or form.grammar is None or "::=" not in form.grammar:
        return form
    from llguidance.gbnf_to_lark import gbnf_to_lark

    _check_length(form.grammar)
    try:
        return StructuredOutputs(grammar=gbnf_to_lark(form.grammar))
    except Exception as error:  # the converter raises arbitrary exceptions
        reason = _error_text(str(error))
        raise UserError(f"the grammar is not valid GBNF: {reason}.") from error


def _compile(llguidance: Any, tokenizer: Any, grammar: str, process: SandboxedProcess) -> Any:
    """Returns an initial matcher, its first bitmask computed."""
    _check_length(grammar)
    try:
        process.request({"grammar": grammar})
    except (ValueError, BrokenPipeError) as error:
        raise UserError(f"the grammar is rejected: {_error_text(str(error))}.") from error
    limits = llguidance.LLParserLimits(**PARSER_LIMITS)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()  # detects grammars that match no text
    if matcher.is_error():
        raise UserError(f"the grammar is rejected: {_error_text(matcher.get_error())}.")
    return matcher


def _check_length(grammar: str) -> None:
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise UserError(
            f"the grammar must have at most {MAX_GRAMMAR_CHARS} characters, got {len(grammar)}."
        )


def _error_text(text: str) -> str:
    """Returns the library's message on one line, without a final period."""
    if "NoExtension" in text:
        return "no text matches it"
    first = " ".join(text.replace("<non-verbose/>", "").split())
    return short_repr(first).strip("'\"").rstrip(".") or "it is not valid"
