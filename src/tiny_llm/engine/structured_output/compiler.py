"""GrammarCompiler: compiles and caches llguidance grammars.

`llguidance` is imported on first use. Compiling a typical schema takes well below a millisecond.
Hostile grammars are rejected with an error: this module limits their length, the library limits
nesting depth, states and steps, and a trial compilation in a separate process, which can be killed,
limits the compile time (`sandbox_handlers.py`).

Where a grammar forces text, llguidance allows only the first token of that text's encoding. The
encoding must not contain added tokens such as `<think>`, because grammars distinguish them from
text: `GrammarTokenizer` never encodes text as added tokens.
"""

import json
import logging
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokenizers

from ...errors import UserError
from ...models.tokenizer.chat_template import think_tags
from ...models.tokenizer.tokenizer import decode_byte_level
from ..inputs.sampling_params import NESTED_TOO_DEEPLY, StructuredOutputs, ToolCalls
from ..tool_calls.registry import AUTO, find_format
from .grammar import GRAMMAR_FAILED, ThinkingState, build_grammar, grammar_error
from .relaxation import relax, strict_schemas
from .sandboxed_process import HANDLERS, SandboxedProcess


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


log = logging.getLogger("tiny_llm.engine")

MAX_GRAMMAR_CHARS = 2**16
MAX_TOOL_GRAMMAR_CHARS = 2**18
MAX_CACHED_GRAMMARS = 128
COMPILE_TIMEOUT_SECONDS = 2.0
# Memory limit of the trial process, with room for a tokenizer of 150,000 tokens.
MAX_MEMORY_BYTES = 2**31
# A quarter of the library's defaults, which assume an otherwise idle machine, except for the lexer:
# a tool with 40 optional strings needs its default.
PARSER_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 12_500,
    "max_lexer_states": 50_000,
    "max_grammar_size": 125_000,
    "verbose_errors": False,
}


@dataclass(frozen=True, eq=False)
class StructuredOutputGrammar:
    """Grammar matcher of one completion."""

    # An `llguidance.LLMatcher`, owned by this object; only `accept_tokens` advances it.
    matcher: Any
    vocab_size: int
    eos_token_ids: Collection[int]
    non_special_eos_token_ids: Collection[
        int
    ] = ()  # EOS tokens that a grammar may also match as text

    def accept_tokens(self, token_ids: Sequence[int]) -> str | None:
        """Advances the matcher by output tokens; returns an error message or None."""
        for token in token_ids:
            if token in self.non_special_eos_token_ids:
                if self.matcher.is_accepting():
                    continue
                return f"{GRAMMAR_FAILED}the output is incomplete, but only EOS is allowed."
            # Check errors first: a matcher beyond a limit would accept EOS in incomplete output.
            has_failed = self.matcher.is_error()
            if not has_failed and self.matcher.is_stopped() and token in self.eos_token_ids:
                continue  # the output is complete, so the matcher has already stopped
            if has_failed or not self.matcher.consume_token(token):
                reason = grammar_error(self.matcher.get_error())
                return f"{GRAMMAR_FAILED}{reason}."
        return None

    def is_complete_after(self, draft_tokens: Sequence[int]) -> bool:
        """Whether output plus draft tokens are complete; keeps the matcher's state."""
        matcher = self.matcher.deep_copy()
        return all(map(matcher.consume_token, draft_tokens)) and bool(matcher.is_accepting())


class GrammarCompiler:
    """Compiles and caches grammars for one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: Any, vocab_size: int, tool_call_parser: str = AUTO):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # Initial matchers by grammar and `strict_schemas`.
        self._cache: OrderedDict[tuple[str, tuple[bool, ...]], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._llguidance: Any = None
        self._special_tokens: dict[str, str] = {}
        template = getattr(tokenizer, "chat_template", None)
        self._tool_call_format = find_format(tool_call_parser, template)
        self._text_eos_token_ids: list[int] = []

    def compile(
        self,
        constraint: StructuredOutputs | ToolCalls,
        thinking: ThinkingState = ThinkingState.NONE,
    ) -> StructuredOutputGrammar:
        """Returns a grammar in its initial state; a cache hit takes microseconds.

        Relaxes non-strict schemas to what a grammar can enforce, and logs a warning.
        """
        with self._lock:
            self._load_llguidance()
        constraint = _gbnf_as_lark(constraint)
        grammar = self._build(constraint, thinking)
        key = grammar, strict_schemas(constraint)
        with self._lock:
            matcher = self._cache.get(key)
        if matcher is None:  # without the lock, so that a slow grammar does not block others
            matcher = self._compile_or_relax(constraint, grammar, thinking)
        with self._lock:
            self._cache[key] = matcher
            self._cache.move_to_end(key)
            if len(self._cache) > MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
            matcher = matcher.deep_copy()
        eos = self._tokenizer.eos_token_ids
        return StructuredOutputGrammar(matcher, self._vocab_size, eos, self._text_eos_token_ids)

    def _compile_or_relax(
        self, constraint: StructuredOutputs | ToolCalls, grammar: str, thinking: ThinkingState
    ) -> Any:
        is_tools = isinstance(constraint, ToolCalls)
        maximum = MAX_TOOL_GRAMMAR_CHARS if is_tools else MAX_GRAMMAR_CHARS
        try:
            return self._compile(grammar, maximum)
        except UserError:
            relaxed, warnings = relax(constraint, self._schema_error)
            if relaxed == constraint:
                raise
        for warning in warnings:
            log.warning("%s", warning)
        return self._compile(self._build(relaxed, thinking), maximum)

    def _compile(self, grammar: str, maximum: int) -> Any:
        """Returns an initial matcher whose first bitmask has been computed."""
        _check_length(grammar, maximum)
        error = self._probe(grammar)
        if not error:
            limits = self._llguidance.LLParserLimits(**PARSER_LIMITS)
            matcher = self._llguidance.LLMatcher(
                self._library_tokenizer, grammar, log_level=0, limits=limits
            )
            if not matcher.is_error():
                matcher.compute_bitmask()  # sets the error if the grammar matches no text
            if not matcher.is_error():
                return matcher
            error = matcher.get_error()
        raise UserError(f"the grammar is rejected: {grammar_error(error)}.")

    def _build(self, constraint: StructuredOutputs | ToolCalls, thinking: ThinkingState) -> str:
        try:
            tags = think_tags(self._tokenizer)
            known = self._special_tokens, self._tool_call_format
            return build_grammar(constraint, thinking, *known, tags)
        except UserError:
            raise
        except RecursionError as error:
            raise UserError(f"{NESTED_TOO_DEEPLY}.") from error
        except (TypeError, ValueError) as error:  # an invalid schema, for example `"required": 5`
            raise UserError(f"the schema is not valid: {grammar_error(str(error))}.") from error

    def _schema_error(self, schema: Any) -> str:
        return self._probe(json.dumps({"grammars": [{"json_schema": schema}]}))

    def _probe(self, grammar: str) -> str:
        """Returns the error of a trial compilation, or an empty string."""
        try:
            self._process.request({"grammar": grammar})
        except (ValueError, BrokenPipeError) as error:
            return str(error)
        return ""

    def _load_llguidance(self) -> None:
        """Imports llguidance and converts the tokenizer (1 s for 150,000 tokens)."""
        if self._llguidance is None:
            try:
                import llguidance
            except ImportError as error:
                raise UserError(
                    "structured outputs require llguidance, which is not installed; install "
                    "tiny-llm[structured]."
                ) from error
            backend = getattr(self._tokenizer, "backend_tokenizer", None)
            if backend is None or not self._tokenizer.eos_token_ids:
                missing = "a tokenizer.json" if backend is None else "an EOS token"
                raise UserError(
                    f"structured outputs require {missing}, which the model does not have."
                )
            self._special_tokens = special_token_expressions(backend)
            self._text_eos_token_ids = _text_eos_token_ids(self._tokenizer)
            text, eos_token_ids = backend.to_str(), sorted(self._tokenizer.eos_token_ids)
            V, given = self._vocab_size, text
            if is_byte_level(backend):
                given = GrammarTokenizer(backend, V, eos_token_ids[0])
            tokenizer = llguidance.LLTokenizer(given, n_vocab=V, eos_token=eos_token_ids)
            settings = {"tokenizer": text, "vocab_size": V, "eos_token_ids": eos_token_ids}
            # Not a context manager: the file must exist for as long as the compiler.
            self._settings = tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json")  # noqa: SIM115
            json.dump({**settings, "limits": PARSER_LIMITS}, self._settings)
            self._settings.flush()
            self._process = SandboxedProcess(
                HANDLERS,
                ["compile", self._settings.name],
                COMPILE_TIMEOUT_SECONDS,
                2**20,
                MAX_MEMORY_BYTES,
            )
            self._llguidance, self._library_tokenizer = llguidance, tokenizer


def _text_eos_token_ids(tokenizer: Any) -> list[int]:
    """Returns the EOS tokens that a grammar can match as text or by name."""
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    return [
        token
        for token in tokenizer.eos_token_ids
        if backend.id_to_token(token) is not None and not (token in added and added[token].special)
    ]


def _gbnf_as_lark(constraint: StructuredOutputs | ToolCalls) -> StructuredOutputs | ToolCalls:
    """Converts a GBNF grammar to Lark; returns other constraints unchanged."""
    if isinstance(constraint, ToolCalls):
        if constraint.response_constraint is None:
            return constraint
        answer = _gbnf_as_lark(constraint.response_constraint)
        assert isinstance(answer, StructuredOutputs)
        return replace(constraint, response_constraint=answer)
    if constraint.grammar is None or "::=" not in constraint.grammar:
        return constraint
    from llguidance.gbnf_to_lark import gbnf_to_lark

    _check_length(constraint.grammar, MAX_GRAMMAR_CHARS)
    try:
        return StructuredOutputs(grammar=gbnf_to_lark(constraint.grammar))
    except Exception as error:  # the converter raises arbitrary exceptions
        reason = grammar_error(str(error))
        raise UserError(f"the grammar is not valid GBNF: {reason}.") from error


def _check_length(grammar: str, maximum: int) -> None:
    if len(grammar) > maximum:
        raise UserError(f"the grammar must have at most {maximum} characters, got {len(grammar)}.")
