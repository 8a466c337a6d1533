"""Structured outputs: bitmasks, output validity, batch invariance, errors."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from jsonschema import Draft202012Validator

from tests.engine.hybrid import build
from tests.engine.support import (
    PARAGRAPH,
    accepts,
    assert_same_outputs,
    chat,
    finish,
    run_alone,
    run_cases,
)
from tests.support import function_tool, object_schema
from tiny_llm import LLM, SamplingParams, StructuredOutputs, ToolCalls, UserError
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.models.tokenizer.loader import open_tokenizer

pytest.importorskip("llguidance")

PERSON = {
    **object_schema(
        name={"type": "string", "maxLength": 12},
        age={"type": "integer", "minimum": 0, "maximum": 150},
    ),
    "additionalProperties": False,
}
FEW = {"$ref": "#/$defs/few"}
ADD_PARAMETERS = {
    **object_schema(a=FEW, why={"type": "string", "maxLength": 12}),
    "additionalProperties": False,
    "$defs": {"few": {"type": "integer", "minimum": 3, "maximum": 7}},
}
ADD = function_tool("add_numbers", ADD_PARAMETERS)
STOP = function_tool("stop", {"type": "object"})


def generate_one(llm, constraint, prompt="What is 17 + 25?", thinking=False, **params):
    params = {"temperature": 0.7, "seed": 1, "max_tokens": 200, **params}
    params["structured_outputs"] = constraint
    [output] = llm.generate(chat(prompt), SamplingParams(**params), enable_thinking=thinking)
    return output


def full_text(output):
    assert (output.error, output.finish_reason) == (None, "stop")
    return output.text


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_json_schema(llm, thinking, temperature):
    schema = json.dumps(PERSON) if thinking else PERSON
    output = generate_one(
        llm, StructuredOutputs(json=schema), thinking=thinking, temperature=temperature
    )
    reasoning, _, body = full_text(output).rpartition("</think>\n\n")
    assert reasoning.startswith("<think>") == thinking
    Draft202012Validator(PERSON).validate(json.loads(body))


def test_regex_choice_and_grammar(llm):
    pattern = r"[a-c]{3}/\d{1,3}"
    assert re.fullmatch(pattern, full_text(generate_one(llm, regex(pattern))))
    choice = ("yes", 'no "or" yes', "no\nline")
    for seed in range(3):
        output = generate_one(llm, StructuredOutputs(choice=choice), temperature=3, seed=seed)
        assert full_text(output) in choice
    lark = StructuredOutputs(grammar='start: "a" rest\nrest: "x" | "yz" rest')
    assert re.fullmatch(r"a(yz)*x", full_text(generate_one(llm, lark)))
    gbnf = StructuredOutputs(grammar='root ::= "a" ("b" | "c"){2,3}')
    assert re.fullmatch(r"a[bc]{2,3}", full_text(generate_one(llm, gbnf)))
    json_object = StructuredOutputs(json_object=True)
    output = generate_one(llm, json_object, logit_bias={llm.tokenizer.encode("}")[0]: 100})
    assert isinstance(json.loads(full_text(output)), dict)


def regex(pattern):
    return StructuredOutputs(regex=pattern)


def test_reasoning_opened_by_the_template(demo):
    llm = LLM(demo, kv_cache_bytes=2**23)
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    params = SamplingParams(
        temperature=0, max_tokens=80, structured_outputs=StructuredOutputs(choice=["yes", "no"])
    )
    [output] = llm.generate(prompt, params)
    reasoning, _, body = full_text(output).partition("</think>\n\n")
    assert reasoning
    assert body in ("yes", "no")


def test_chat_as_token_ids(llm):
    """Like the server, compiles the grammar in another thread."""
    messages, constraint = chat("What is 17 + 25?"), StructuredOutputs(json=PERSON)
    params = SamplingParams(seed=1, temperature=0.7, max_tokens=200, structured_outputs=constraint)
    for thinking in (False, True):
        ids = llm.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=thinking
        )
        num_compiled = len(llm.grammars._cache)
        with ThreadPoolExecutor() as pool:
            pool.submit(llm.compile_grammar, ids, params, enable_thinking=thinking).result()
        [output] = llm.generate(ids, params, enable_thinking=thinking)
        assert len(llm.grammars._cache) <= num_compiled + 1
        expected = generate_one(llm, constraint, thinking=thinking)
        assert output.token_ids == expected.token_ids
        assert output.text.startswith("<think>") == thinking


def test_auto_tool_choice(llm):
    text = full_text(generate_one(llm, ToolCalls([ADD]), temperature=0))
    assert text == full_text(generate_one(llm, None, temperature=0)), (
        "the grammar must not change text without a call"
    )
    # After the start of a call, the grammar forces the tool's name.
    matcher = llm.grammars.compile(ToolCalls([ADD])).matcher
    assert matcher.consume_tokens(llm.tokenizer.encode('Well: <tool_call>\n{"name": "'))
    assert llm.tokenizer.decode(matcher.compute_ff_tokens()).startswith("add_numbers")


def test_auto_tool_choice_rejects_malformed_calls_in_text(llm):
    call = '<tool_call>\n{"name": "add_numbers", "arguments": {"a":3,"why":"</tool_call>"}}\n'
    for parallel in (True, False):
        constraint = ToolCalls([ADD], parallel=parallel)
        for text, is_complete in [
            ("Hello.", True),
            (f"Hello. {call}</tool_call>", True),
            (f"{call}</tool_call>\n{call}</tool_call>", parallel),
            (call, False),
            ('<tool_call>\n{"name": "other"', False),
            (call.replace("3", "8"), False),
        ]:
            matcher = llm.grammars.compile(constraint).matcher
            assert accepts(matcher, llm.tokenizer, text) == is_complete, (text, parallel)


def constrained(constraint, **params):
    return SamplingParams(structured_outputs=constraint, **{"max_tokens": 40, **params})


CASES = [
    (chat("Who?"), constrained(StructuredOutputs(json=PERSON), temperature=0)),
    (chat("Who?"), constrained(StructuredOutputs(json=PERSON), seed=3, logprobs=2)),
    (
        chat(PARAGRAPH + "Who?"),
        constrained(ToolCalls([ADD, STOP], "required"), seed=4, temperature=0.8),
    ),
    (chat("What is 1 + 2?"), constrained(ToolCalls([ADD]), seed=5)),
    (
        PARAGRAPH,
        constrained(
            StructuredOutputs(regex=r"(Mira|Lenmora|[a-z]{3,9}) [0-9]{2}\."),
            seed=6,
            temperature=1.3,
            top_p=0.9,
            frequency_penalty=0.5,
        ),
    ),
    (PARAGRAPH, SamplingParams(max_tokens=40, seed=7)),
]


@pytest.fixture(scope="module")
def reference(demo):
    def make_llm(case: int) -> LLM:
        llm = LLM(demo, kv_cache_bytes=2**24, max_num_seqs=1, enable_prefix_caching=False)
        llm._grammar_proposer = None  # so that forced tokens are sampled one by one
        return llm

    return run_alone(make_llm, CASES)


def serve(llm, reference, direction=1, steps_between=0):
    outputs, logits = run_cases(llm, range(len(CASES))[::direction], steps_between, CASES)
    assert_same_outputs(outputs, logits, reference)
    return outputs


@pytest.mark.slow
def test_forced_tokens_save_steps_without_changing_outputs(demo, reference):
    llm = LLM(demo, kv_cache_bytes=2**24, max_num_seqs=1)
    serve(llm, reference)
    statistics = llm.runner.statistics
    assert statistics.num_accepted_tokens > 20
    assert statistics.num_accepted_tokens > 0.9 * statistics.num_draft_tokens
    tokens = sum(len(output.token_ids) for output in reference[0].values())
    assert statistics.target_steps < tokens - 15


def test_batch_with_prefix_cache_hits(demo, reference):
    llm = LLM(demo, kv_cache_bytes=2**24, block_size=4, max_num_batched_tokens=48)
    serve(llm, reference, steps_between=2)
    again = serve(llm, reference, direction=-1)
    assert sum(output.num_cached_tokens for output in again.values()) > 50


@pytest.mark.parametrize(("block_size", "tokens"), [(4, 140), (16, 128)])
def test_preemption(demo, reference, block_size, tokens):
    llm = build(demo, tokens, 0, block_size=block_size)
    serve(llm, reference)
    assert llm.scheduler.num_preemptions > 0


def test_draft_model(demo, reference):
    llm = LLM(demo, draft_model="demo-draft", num_drafts=3, kv_cache_bytes=2**24)
    propose, num_checked = llm.runner.draft.propose, 0

    def propose_and_check(chunks):
        nonlocal num_checked
        num_draft_tokens = propose(chunks)
        for chunk, draft_tokens in zip(chunks, num_draft_tokens, strict=True):
            grammar = chunk.request.grammar
            if grammar is not None and not set(draft_tokens) & llm.tokenizer.eos_token_ids:
                assert grammar.matcher.validate_tokens(draft_tokens) == len(draft_tokens)
                num_checked += len(draft_tokens)
        return num_draft_tokens

    llm.runner.draft.propose = propose_and_check
    serve(llm, reference, steps_between=1)
    assert num_checked > 100
    assert llm.runner.statistics.num_accepted_tokens > 50


def test_ngram_proposer(demo, reference):
    llm = LLM(demo, speculative="ngram", kv_cache_bytes=2**24)
    serve(llm, reference, steps_between=1)
    forced = LLM(demo, kv_cache_bytes=2**24)
    serve(forced, reference, steps_between=1)
    assert llm.runner.statistics.num_accepted_tokens > forced.runner.statistics.num_accepted_tokens


def test_logprobs_ignore_the_grammar(llm):
    output = generate_one(llm, StructuredOutputs(choice=["yes", "no"]), logprobs=5)
    unconstrained = generate_one(llm, None, temperature=1, max_tokens=1, logprobs=5)
    top = list(unconstrained.logprobs[0].items())[:5]
    assert list(output.logprobs[0].items())[:5] == top


def test_each_completion_has_its_own_grammar_and_may_be_truncated(llm):
    pattern = "[0-9]{2}[a-z]{2}"
    params = SamplingParams(n=6, seed=2, temperature=2, structured_outputs=regex(pattern))
    [output] = llm.generate("Why?", params)
    texts = [completion.text for completion in output.outputs]
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(set(texts)) > 1
    truncated = generate_one(llm, StructuredOutputs(json=PERSON), max_tokens=4)
    assert (truncated.error, truncated.finish_reason) == (None, "length")


@pytest.mark.parametrize(
    ("owner", "arguments", "error"),
    [
        (StructuredOutputs, {}, "must have exactly one of json, regex, choice, grammar and"),
        (StructuredOutputs, {"regex": "a", "choice": ["a"]}, "=True, got regex and choice."),
        (StructuredOutputs, {"json_object": False}, "must have exactly one of"),
        (StructuredOutputs, {"regex": 5}, "structured_outputs.regex must be a string, got 5."),
        (StructuredOutputs, {"choice": "yes"}, "a list of non-empty strings, got 'yes'."),
        (StructuredOutputs, {"choice": [""]}, "a list of non-empty strings, got ['']."),
        (StructuredOutputs, {"json": "{"}, "the JSON schema '{' is not JSON."),
        (StructuredOutputs, {"json": "[" * 100_000}, "more than 100 levels deep; flatten it."),
        (StructuredOutputs, {"json": "[" * 90}, "is not JSON."),
        (StructuredOutputs, {"json": 5}, "the JSON schema must be an object, got 5."),
        (StructuredOutputs, {"json": {"const": float("nan")}}, "is not JSON-serializable"),
        (ToolCalls, {"tools": []}, "tools must not be empty."),
        (ToolCalls, {"tools": [{"name": "f"}]}, "got {'name': 'f'}."),
        (ToolCalls, {"choice": "any"}, "must be 'auto' or 'required', got 'any'."),
        (ToolCalls, {"choice": "required", "name": "f"}, "must be one of add_numbers, got 'f'."),
        (ToolCalls, {"name": "add_numbers"}, "requires the tool choice 'required', got 'auto'."),
        (
            ToolCalls,
            {"choice": "required", "response_constraint": StructuredOutputs(json=PERSON)},
            "response_constraint requires the tool choice 'auto'",
        ),
    ],
)
def test_invalid_arguments_are_rejected(owner, arguments, error):
    defaults = {"tools": [ADD]} if owner is ToolCalls else {}
    with pytest.raises(UserError) as raised:
        owner(**defaults | arguments)
    assert error in str(raised.value)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize("conflict", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_params_conflicting_with_structured_outputs(conflict):
    [name] = conflict
    with pytest.raises(UserError, match=f"{name}=.* cannot be combined with structured_outputs"):
        SamplingParams(structured_outputs=StructuredOutputs(choice=["a"]), **conflict)


HOSTILE_CONSTRAINTS = [
    StructuredOutputs(json={"$ref": "file:///etc/passwd"}),
    StructuredOutputs(json={"$ref": "#"}),
    StructuredOutputs(json={"enum": []}),
    *(
        StructuredOutputs(json=json.loads('{"items": ' * depth + "{}" + "}" * depth))
        for depth in (300, 450)
    ),
    *(
        StructuredOutputs(json={"properties": {"a": {}}, "required": required})
        for required in (True, [{}], 5)
    ),
    StructuredOutputs(json={"enum": [f"{number:020}" for number in range(5000)]}),
    StructuredOutputs(regex="a" * 100_000),
    StructuredOutputs(regex="[^\\s\\S]"),
    StructuredOutputs(grammar="start: " + "(" * 5000 + '"a"' + ")" * 5000),
    StructuredOutputs(grammar='root ::= "a'),
    StructuredOutputs(grammar="not a grammar"),
    ToolCalls([function_tool("f", {"type": "strung"})]),
    # Compiling this grammar would take minutes, and the library sets no limit.
    StructuredOutputs(
        json={"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(60)]}
    ),
]


@pytest.mark.parametrize("constraint", HOSTILE_CONSTRAINTS, ids=range(len(HOSTILE_CONSTRAINTS)))
def test_hostile_grammar_is_rejected_and_the_engine_survives(llm, constraint):
    output = generate_one(llm, constraint)
    assert output.finish_reason == "error"
    assert re.fullmatch(r"[^\n]{10,200}\.", output.error), output.error
    assert "/work" not in output.error
    assert full_text(generate_one(llm, StructuredOutputs(choice=["yes"]))) == "yes"


@pytest.mark.parametrize(
    "constraint",
    [
        StructuredOutputs(json={"type": "string", "pattern": "(a|b)*a(a|b){200}"}),
        StructuredOutputs(json={"type": "array", "minItems": 10**9}),
        StructuredOutputs(json={"type": "string", "minLength": 10**9}),
        StructuredOutputs(regex="(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
        StructuredOutputs(grammar='start: start start | "a" | ""'),
    ],
    ids=["pattern", "items", "length", "counted", "ambiguous"],
)
def test_expensive_grammar_terminates(llm, constraint):
    """The request is rejected, finishes, or fails without affecting the engine."""
    output = generate_one(llm, constraint, max_tokens=30)
    assert output.finish_reason in ("length", "stop", "error")
    assert (output.finish_reason == "error") == (output.error is not None)
    assert not llm.has_unfinished_requests


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "reasons"),
    [
        (".", {"stop", "length"}),
        ('"', {"error", "stop", "length"}),  # this token also occurs in every tool call
        ("\n", {"error", "stop", "length"}),
    ],
)
def test_textual_end_token_ends_only_complete_outputs(demo, end, reasons):
    def generate_all(**engine):
        # Opens a separate tokenizer, because all tests share the demo's.
        config = json.loads((TARGET_PATH / "config.json").read_text())
        model = (demo[0], open_tokenizer(TARGET_PATH, config))
        llm = LLM(model, kv_cache_bytes=2**25, **engine)
        [token] = llm.tokenizer.encode(end, add_special_tokens=False)
        llm.tokenizer.add_eos_token(token)
        constraints = [ToolCalls([ADD], choice="required"), StructuredOutputs(json=PERSON)]
        texts = []
        for constraint in constraints:
            for budget in (None, 5):
                output = generate_one(llm, constraint, thinking=True, thinking_token_budget=budget)
                assert output.finish_reason in reasons, output.error
                texts.append((output.finish_reason, output.text, output.error))
        return texts

    actual = generate_all()
    assert generate_all(speculative="ngram") == actual
    for number, (reason, text, error) in enumerate(actual):
        body = text.rpartition("</think>")[2].strip()
        assert error is None or "the output is incomplete, but only EOS is allowed" in error
        if reason == "stop" and number >= 2:
            Draft202012Validator(PERSON).validate(json.loads(body))
        elif reason == "stop":
            assert body.startswith("<tool_call>")
            assert body.endswith("</tool_call>")


def test_failed_grammar_fails_only_its_request(llm):
    llm.add_request("Why?", SamplingParams(structured_outputs=regex("[a-z ]{9}")), request_id="a")
    llm.add_request("Why?", SamplingParams(temperature=0, max_tokens=4), request_id="b")
    llm.step()
    request = next(r for r in llm.scheduler.running if r.request_id == "a")
    # Makes the matcher reject all further tokens.
    request.grammar.matcher.consume_tokens(llm.tokenizer.encode("0"))
    outputs = finish(llm)
    assert outputs["a"].error.startswith("the grammar failed: ")
    assert (outputs["b"].finish_reason, outputs["b"].error) == ("length", None)


def test_grammars_are_cached_and_thread_safe(llm):
    compiler = GrammarCompiler(llm.tokenizer, llm.vocab_size)
    constraint = StructuredOutputs(json=PERSON)
    with ThreadPoolExecutor(4) as pool:
        compiled = list(pool.map(compiler.compile, [constraint] * 4))
    assert len({id(grammar.matcher) for grammar in compiled}) == 4
    assert len(compiler._cache) == 1
    for number in range(200):
        compiler.compile(StructuredOutputs(choice=[str(number)]))
    assert len(compiler._cache) == 128


def test_missing_library_error_names_the_package(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"require llguidance.*tiny-llm\[structured\]"):
        GrammarCompiler(llm.tokenizer, llm.vocab_size).compile(StructuredOutputs(choice=["a"]))


def test_library_is_imported_lazily():
    program = (
        "import sys; from tiny_llm import LLM, SamplingParams\n"
        "LLM('demo', kv_cache_bytes=2**22).generate('a', SamplingParams(max_tokens=2))\n"
        "assert 'llguidance' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
