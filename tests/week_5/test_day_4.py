"""Week 5, day 4, optional: JSON grammar, bitmasks and forced tokens."""

import json
import random
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.structured_output.tiny_language import (
    LANGUAGE,
    TOKENS,
    V,
    allowed_tokens,
    tiny_tokenizer,
)
from tests.support import as_numpy, assert_equal
from tiny_llm.engine.execution.sampler import SamplingRow
from tiny_llm.engine.inputs.sampling_params import SamplingParams, StructuredOutputs
from tiny_llm.engine.scheduling.request import EngineRequest
from tiny_llm.engine.spec_decode.draft_tokens import (
    MAX_GRAMMAR_DRAFT_TOKENS,
    GrammarProposer,
    forced_tokens,
)
from tiny_llm.engine.structured_output import bitmask
from tiny_llm.engine.structured_output.bitmask import (
    apply_grammar_bitmask,
    plan_masks,
    unpack_bitmask,
)
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.engine.tool_calls.json_scanner import JsonScanner

pytest.importorskip("llguidance")
pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.mark.parametrize(
    ("text", "num_valid"),
    [
        ('{"a": 1, "b": [true, {}]}', 25),
        ("[[], [1, 2], {}]", 16),
        ('{"a": "}]"}', 11),
        ("[1,]", 3),
        ('{"a": 1,}', 8),
        ("{,", 1),
        ("[,", 1),
        ('{"a" 1', 5),
        ('{"a": }', 6),
        ('{"a": 1 "b"', 8),
        ('{"a", 1}', 4),
        ("{1: 2}", 1),
        ("[1 2]", 3),
        ('[1: "a"]', 2),
        ("[1}", 2),
        ('{"a": 1]', 7),
        ("[{]", 2),
        ("}", 0),
        ("]", 0),
    ],
)
def test_task_1_valid_prefix(text, num_valid):
    number, is_complete = JsonScanner().feed(text)
    assert_equal(text[:number], text[:num_valid], f"the valid part of {text!r} to be")
    assert_equal(is_complete, num_valid == len(text), f"is_complete of {text!r} to be")


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {f"k{i}": random_value(rng, depth + 1) for i in range(rng.randrange(4))}
    return [rng.choice([0, -3, 2.5]), None, True, 'a"]}'][kind]


def test_task_1_random_documents_and_edits():
    """A complete text is valid if and only if Python's `json` parses it."""
    rng, num_broken = random.Random(5), 0
    for _ in range(1500):
        text = json.dumps([random_value(rng)])
        if rng.random() < 0.7:  # inserts, deletes or replaces a character
            place = rng.randrange(len(text))
            text = text[:place] + rng.choice(["", *'{}[]:,"1 ']) + text[place + rng.randrange(2) :]
        try:
            expected = isinstance(json.loads(text), list | dict)
        except ValueError:
            expected = False
        number, is_complete = JsonScanner().feed(text)
        actual = is_complete and number == len(text)
        assert actual == expected, f"{text!r}: expected valid == {expected}, got {actual}"
        num_broken += not expected
    assert 300 < num_broken < 1200


def test_task_1_text_cut_anywhere_and_after_its_end():
    text = '{"a": [1, {"b": null}, "x]"], "c": {}}'
    for cut in range(1, len(text)):
        scanner = JsonScanner()
        assert scanner.feed(text[:cut]) == (cut, False), f"expected {text[:cut]!r} to be a prefix"
        expected = (len(text) - cut, True)
        assert_equal(scanner.feed(text[cut:]), expected, f"(characters, is_complete) at {cut}")
    scanner = JsonScanner()
    assert scanner.feed("{}") == (2, True), "expected '{}' to be complete"
    for text, num_valid in ((" ", 1), (",", 0), ("{", 0)):
        try:
            actual = deepcopy(scanner).feed(text)
        except IndexError as error:
            pytest.fail(f"expected {text!r} after '{{}}' to be invalid, got {error!r}")
        expected = (num_valid, False)
        assert actual == expected, f"{text!r} after '{{}}': expected {expected}, got {actual}"


def test_task_1_token_mask_by_definition():
    """A token is allowed if all of its characters continue the text."""
    vocabulary = [*'{}]":, 1x', '"}', ": [", ', "', "1}", "tr", "]]"]
    for text, allowed in [
        ("{", ["}", '"', " ", '"}']),
        ('{"a"', [":", " ", ": ["]),
        ('{"a": ', ["{", '"', " ", "1", '"}', "1}", "tr"]),
        ('{"a": [[1', ["]", ",", " ", "1", ', "', "]]"]),
        ('{"a": 1', ["}", ",", " ", "1", ', "', "1}"]),
        ('{"a": 1,', ['"', " ", '"}']),
        ('[{"a": "', vocabulary),
    ]:
        scanner = JsonScanner()
        assert scanner.feed(text) == (len(text), False), f"expected {text!r} to be a prefix"
        actual = [t for t in vocabulary if deepcopy(scanner).feed(t)[0] == len(t)]
        assert actual == allowed, f"allowed after {text!r}: expected {allowed}, got {actual}"


def test_task_2_example():
    packed = mx.array([[0b0101], [0b1000]], mx.int32)
    expected = [[True, False, True, False], [False, False, False, True]]
    assert_equal(unpack_bitmask(packed, 4).tolist(), expected, "bits of 5 and 8")


@pytest.mark.parametrize("width", [1, 31, 32, 33, 100])
def test_task_2_bits_equal_numpy(width):
    expected = np.random.default_rng(width).random((3, width)) < 0.5
    words = -(-width // 32)
    padded = np.ones((3, 32 * words), bool)  # padding bits may have any value
    padded[:, :width] = expected
    packed = np.packbits(padded, axis=-1, bitorder="little").view(np.int32)
    actual = unpack_bitmask(mx.array(packed), width)
    assert actual.dtype == mx.bool_, f"expected bool, got {actual.dtype}"
    assert actual.shape == (3, width), f"expected shape {(3, width)}, got {actual.shape}"
    rows = [[np.flatnonzero(row).tolist() for row in np.array(x)] for x in (actual, expected)]
    assert_equal(*rows, "the tokens of each row")


def plain_request(grammar: Any = None) -> EngineRequest:
    return EngineRequest("", [0], SamplingParams(), grammar=grammar)


@pytest.mark.parametrize("constrained", [[0, 1, 2], [1], [0, 2]], ids=str)
def test_task_2_only_constrained_rows_change(monkeypatch, constrained):
    masks = np.array([[0b1001], [0b0110], [0b0001]], np.int32)
    grammar: Any = object()
    rows = [SamplingRow(plain_request(grammar if i in constrained else None), 0) for i in range(3)]
    monkeypatch.setattr(bitmask, "_packed_masks", lambda given, width: masks[: len(given)])
    logits = mx.array([[0.0, 1.0, -2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [-1.0, 0.5, 0.0, 2.0]])
    before = as_numpy(logits).copy()
    actual = as_numpy(apply_grammar_bitmask(logits, rows))
    expected = before.copy()
    for row, mask in zip(constrained, masks[:, 0], strict=False):
        expected[row, [token for token in range(4) if not mask >> token & 1]] = -np.inf
    assert actual.tolist() == expected.tolist(), f"expected {expected}, got {actual}"
    assert_equal(as_numpy(logits).tolist(), before.tolist(), "the logits argument to be unchanged")


def rows_of(*drafts_of_requests: list[tuple[int, ...]]) -> tuple[list[Any], list[Any]]:
    """Rows with the given draft tokens, one list per request."""
    grammars = [f"grammar {number}" for number in range(len(drafts_of_requests))]
    rows = []
    for grammar, row_drafts in zip(grammars, drafts_of_requests, strict=True):
        request = SimpleNamespace(grammar=grammar)
        rows += [SimpleNamespace(request=request, draft_tokens=drafts) for drafts in row_drafts]
    return grammars, rows


@pytest.mark.parametrize(
    ("drafts", "expected_jobs", "expected_indices"),
    [
        ([[()]], [()], [0]),
        ([[()], [()]], [(), ()], [0, 1]),
        ([[(), (5,), (5, 6)]], [(5, 6)], [0, 1, 2]),
        ([[()], [(), (5,)], [()]], [(), (5,), ()], [0, 1, 2, 3]),
        ([[(5, 6)]], [(5, 6)], [2]),  # one row, masked after both draft tokens
        ([[(7,)], [(5, 6)], [(), (1,)]], [(7,), (5, 6), (1,)], [1, 4, 5, 6]),
    ],
    ids=["one row", "two requests", "two drafts", "a batch", "the last of three", "some rows"],
)
def test_task_3_jobs_and_rows(drafts, expected_jobs, expected_indices):
    grammars, rows = rows_of(*drafts)
    jobs, indices = plan_masks(rows)
    found = [(job.grammar, tuple(job.draft_tokens)) for job in jobs]
    expected = list(zip(grammars, expected_jobs, strict=True))
    assert found == expected, f"expected one job per request: {expected}, got {found}"
    assert_equal(list(indices), expected_indices, "mask index of each row")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tiny_tokenizer(), V)


def test_task_3_masks_equal_brute_force(compiler):
    """Two requests have a grammar and draft tokens; one row has no grammar."""
    grammars = [compiler.compile(StructuredOutputs(regex=LANGUAGE)) for _ in range(2)]
    first, second = map(plain_request, grammars)
    drafts = {id(first): (3, 0, 2), id(second): (4,)}
    rows = [SamplingRow(plain_request(), 0)]
    for request in (first, second):
        tokens = drafts[id(request)]
        rows += [SamplingRow(request, n, tokens[:n]) for n in range(len(tokens) + 1)]
    for _ in range(2):  # repeated, because a draft token must not advance the matcher
        masked = as_numpy(apply_grammar_bitmask(mx.zeros((len(rows), V)), rows))
        assert np.isfinite(masked[0]).all(), "expected no mask for a row without a grammar"
        for row, logits in zip(rows[1:], masked[1:], strict=True):
            text = "".join(TOKENS[token] for token in row.draft_tokens)
            expected = [TOKENS[token] for token in sorted(allowed_tokens(text))]
            actual = [TOKENS[token] for token in np.flatnonzero(np.isfinite(logits))]
            assert actual == expected, f"allowed after {text!r}: expected {expected}, got {actual}"


class FakeMatcher:
    """Forces the given tokens; the grammar accepts the first `num_valid`."""

    def __init__(self, tokens: list[int], num_valid: int):
        self.tokens, self.num_valid = tokens, num_valid

    def compute_ff_tokens(self) -> list[int]:
        return self.tokens

    def validate_tokens(self, tokens: list[int]) -> int:
        return min(self.num_valid, len(tokens))


@pytest.mark.parametrize(
    ("tokens", "num_valid"), [([], 0), ([5], 1), ([5, 6, 7], 3), ([5, 6, 7], 1), ([5], 0)]
)
def test_task_4_invalid_tokens_are_dropped(tokens, num_valid):
    expected, actual = tokens[:num_valid], list(forced_tokens(FakeMatcher(tokens, num_valid)))
    assert actual == expected, f"{num_valid} of {tokens} valid: expected {expected}, got {actual}"


@pytest.mark.parametrize("number", [0, 1, MAX_GRAMMAR_DRAFT_TOKENS, 40])
def test_task_4_bounded_proposal(number):
    tokens = list(range(number))
    grammar = SimpleNamespace(matcher=FakeMatcher(tokens, number))
    actual = list(GrammarProposer().propose(plain_request(grammar), num_running=50))
    expected = tokens[:MAX_GRAMMAR_DRAFT_TOKENS]
    assert actual == expected, f"{number} forced tokens: expected {expected}, got {actual}"
    assert list(GrammarProposer().propose(plain_request(), 1)) == []


@pytest.mark.parametrize("regex", ["a+", "abba", "(ab|ba)ac", "a{4}c?", "bcbcb?c"])
def test_task_4_forced_tokens_are_the_only_allowed_tokens(compiler, regex):
    grammar = compiler.compile(StructuredOutputs(regex=regex))
    request = plain_request(grammar)
    while not grammar.matcher.is_stopped():
        tokens = tuple(GrammarProposer().propose(request, 1))
        rows = [SamplingRow(request, n, tokens[:n]) for n in range(len(tokens) + 1)]
        masked = as_numpy(apply_grammar_bitmask(mx.zeros((len(rows), V)), rows))
        for token, logits in zip(tokens, masked, strict=False):
            allowed = np.flatnonzero(np.isfinite(logits)).tolist()
            assert allowed == [token], f"{regex}: expected only {token} to be allowed: {allowed}"
        choice = np.flatnonzero(np.isfinite(masked[-1]))
        if not len(choice):
            break
        assert grammar.accept_tokens([*tokens, int(choice[-1])]) is None


def test_task_4_forced_tokens_save_steps(demo):
    from tiny_llm import LLM

    llm = LLM(demo, kv_cache_bytes=2**23)
    statistics = llm.runner.statistics
    constraint = StructuredOutputs(choice=["the Norwegian capital", "the French capital"])
    params = SamplingParams(temperature=0, max_tokens=30, structured_outputs=constraint)
    outputs, steps = [], [0]
    for proposer in (GrammarProposer(), None):
        llm._grammar_proposer = proposer
        [output] = llm.generate("Where?", params)
        assert output.error is None, output.error
        outputs.append(output.token_ids)
        steps.append(statistics.target_steps)
    accepted, drafted = statistics.num_accepted_tokens, statistics.num_draft_tokens
    assert accepted == drafted, f"expected all {drafted} draft tokens accepted, got {accepted}"
    assert_equal(outputs[0], outputs[1], "equal outputs with and without draft tokens")
    with_drafts, without = steps[1], steps[2] - steps[1]
    assert with_drafts < without / 2, f"expected less than half of {without}, got {with_drafts}"
