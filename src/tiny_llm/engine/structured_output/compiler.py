"""Grammars that answers are kept to: compiled once for each text, then a copy for each answer.

The work is done by `llguidance`, which is imported when the first request asks for it. Compiling
takes well below a millisecond for a usual schema. What a caller sends is bounded: the length of the
grammar here, its levels, states and steps in the library, and the time in a process that compiles
it first and can be stopped (`compile_probe.py`). So a hostile one is refused with a sentence.
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

MAX_GRAMMAR_CHARS = 2**16  # of a grammar
MAX_CACHED_GRAMMARS = 128  # grammars
COMPILE_TIMEOUT_SECONDS = 2.0  # that compiling one may take
COMPILE_PROBE = Path(__file__).with_name("compile_probe.py")
# The library's own bounds are for machines that do nothing else meanwhile; these are a quarter.
PARSER_LIMITS = {
    "initial_lexer_fuel": 250_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 12_500,
    "max_lexer_states": 50_000,
    "max_grammar_size": 125_000,
    "verbose_errors": False,
}


class StructuredOutputGrammar:
    """The grammar of one answer, and how far the answer has come.

    Args:
        matcher: an `llguidance.LLMatcher` of its own.
        vocab_size: how many tokens it knows.
        eos_token_ids: those that end an answer.
        text_eos_token_ids: those of them that are text, too.

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
        """Advances by tokens that the answer has kept; returns why it cannot, in a sentence."""
        for token in token_ids:
            if token in self.text_eos_token_ids:
                if self.matcher.is_accepting():
                    continue
                return "the grammar cannot be followed further: only an end token could come next."
            # A matcher that met a limit allows the end token, whatever is still missing.
            has_failed = self.matcher.is_error()
            if not has_failed and self.matcher.is_stopped() and token in self._eos_token_ids:
                continue  # nothing else could follow, so the matcher has ended already
            if has_failed or not self.matcher.consume_token(token):
                reason = _error_text(self.matcher.get_error())
                return f"the grammar cannot be followed further: {reason}."
        return None

    def is_complete_after(self, draft_tokens: Sequence[int]) -> bool:
        """Whether the answer is whole after guesses; no effect on the matcher."""
        matcher = self.matcher.deep_copy()
        return all(map(matcher.consume_token, draft_tokens)) and bool(matcher.is_accepting())

    def fast_forward_tokens(self) -> list[int]:
        """The tokens that must come next, as far as there is only one way to go on."""
        tokens: list[int] = self.matcher.compute_ff_tokens()
        return tokens


class GrammarCompiler:
    """Compiles grammars for one tokenizer. May be used by several threads.

    Args:
        tokenizer: of the model; its `backend_tokenizer` is one of the library `tokenizers`.
        vocab_size: V of the model.
    """

    def __init__(self, tokenizer: Any, vocab_size: int):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._cache: OrderedDict[str, Any] = OrderedDict()  # matchers by grammar, as new
        self._lock = threading.Lock()
        self._library: tuple[Any, Any] | None = None
        self._special_token_names: frozenset[str] = frozenset()
        self._text_eos_token_ids: list[int] = []

    def compile(
        self, form: StructuredOutputs | ToolCalls, thinking: ThinkingState = ThinkingState.NONE
    ) -> StructuredOutputGrammar:
        """A grammar at its beginning. The second time for the same form takes microseconds.

        Raises:
            UserError: it is not valid, too large, or what it asks for is not supported; or
                `llguidance` is not installed.
        """
        with self._lock:
            llguidance, tokenizer = self._load_llguidance()
        grammar = build_grammar(_gbnf_as_lark(form), thinking, self._special_token_names)
        with self._lock:
            matcher = self._cache.get(grammar)
        if matcher is None:  # without the lock: a slow grammar does not hold up the others
            matcher = _compile(llguidance, tokenizer, grammar, self._process)
        with self._lock:
            self._cache[grammar] = matcher
            self._cache.move_to_end(grammar)
            if len(self._cache) > MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
            own = matcher.deep_copy()
        ends = self._tokenizer.eos_token_ids
        return StructuredOutputGrammar(own, self._vocab_size, ends, self._text_eos_token_ids)

    def _load_llguidance(self) -> tuple[Any, Any]:
        """The library, and its form of the tokenizer: a second of work for 150,000 tokens."""
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
                lack = "tokenizer.json" if backend is None else "end token"
                raise UserError(f"structured outputs need a model with a {lack}; this has none.")
            added = [token.content for token in backend.get_added_tokens_decoder().values()]
            self._special_token_names = special_token_names(added)
            self._text_eos_token_ids = _text_eos_token_ids(self._tokenizer)
            text, eos_token_ids = backend.to_str(), sorted(self._tokenizer.eos_token_ids)
            tokenizer = llguidance.LLTokenizer(
                text, n_vocab=self._vocab_size, eos_token=eos_token_ids
            )
            self._settings = tempfile.NamedTemporaryFile(  # noqa: SIM115 - it lives as long as this
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
    """The end tokens that a grammar can read as text, or by their name."""
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    return [
        token
        for token in tokenizer.eos_token_ids
        if backend.id_to_token(token) is not None and not (token in added and added[token].special)
    ]


def _gbnf_as_lark(form: StructuredOutputs | ToolCalls) -> StructuredOutputs | ToolCalls:
    """The same with a grammar in Lark's notation, where it was in GBNF."""
    if isinstance(form, ToolCalls) or form.grammar is None or "::=" not in form.grammar:
        return form
    from llguidance.gbnf_to_lark import gbnf_to_lark

    _check_length(form.grammar)
    try:
        return StructuredOutputs(grammar=gbnf_to_lark(form.grammar))
    except Exception as error:  # it raises whatever its parser meets
        reason = _error_text(str(error))
        raise UserError(f"the grammar is not valid GBNF: {reason}.") from error


def _compile(llguidance: Any, tokenizer: Any, grammar: str, process: SandboxedProcess) -> Any:
    """A matcher at the grammar's beginning, which knows its first mask."""
    _check_length(grammar)
    try:
        process.request({"grammar": grammar})
    except (ValueError, BrokenPipeError) as error:
        raise UserError(f"the grammar is refused: {_error_text(str(error))}.") from error
    limits = llguidance.LLParserLimits(**PARSER_LIMITS)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()  # a grammar that no text matches says so only now
    if matcher.is_error():
        raise UserError(f"the grammar is refused: {_error_text(matcher.get_error())}.")
    return matcher


def _check_length(grammar: str) -> None:
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise UserError(
            f"the grammar has {len(grammar)} characters; it may have {MAX_GRAMMAR_CHARS}."
        )


def _error_text(text: str) -> str:
    """The library's message as the end of a sentence; its other lines show where in the grammar."""
    if "NoExtension" in text:
        return "no text matches it"
    first = " ".join(text.replace("<non-verbose/>", "").split())
    return short_repr(first).strip("'\"").rstrip(".") or "it is not valid"
