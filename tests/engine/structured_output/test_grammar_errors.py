"""Error messages of rejected grammars do not mention the library's options."""

import pytest

from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.inputs.sampling_params import StructuredOutputs
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.engine.structured_output.grammar import MAX_CHARS, grammar_error
from tiny_llm.errors import UserError
from tiny_llm.models.tokenizer.loader import open_tokenizer

OVERLAPPING = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}
UNDEFINED = {"type": "object", "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(open_tokenizer(TARGET_PATH, {"eos_token_id": 1}), 4200)


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"json": OVERLAPPING}, "is strict, but these keywords cannot be enforced: '/oneOf'"),
        ({"json": {"not": {}}}, "keywords cannot be enforced: '/not'; remove them"),
        ({"json": {"type": "frob"}}, "'frob' is not a JSON Schema type"),
        ({"json": {"$ref": "#/nope"}}, "the $ref '#/nope' does not exist in the JSON schema"),
        (
            {"json": {"$ref": "http://a.b/c"}},
            "the $ref 'http://a.b/c' points outside the JSON schema",
        ),
        ({"json": {"minimum": "a"}}, 'minimum in the JSON schema must be a number, got "a"'),
        ({"json": {"properties": 5}}, "in the JSON schema, properties must be an object"),
        (
            {"json": {"type": "string", "minLength": 5, "maxLength": 2}},
            "no value matches the JSON schema: minLength (5) is greater than maxLength (2)",
        ),
        ({"json": UNDEFINED}, "no value matches the JSON schema: required property 'a' is"),
        ({"json": {"type": "string", "pattern": "("}}, "cannot be enforced: '/pattern'"),
        ({"regex": "("}, "invalid regular expression: unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"grammar": "start: foo"}, 'the rule "foo" is not defined'),
        ({"grammar": 'x: "a"'}, 'the rule "start" is not defined'),
        ({"grammar": 'start: "a"\nstart: "b"'}, 'the rule "start" is defined twice'),
        ({"grammar": "start: ("}, "line 1: expected ')', got"),
        ({"grammar": "start: <nope>"}, '"<nope>" is not a special token of the model'),
        ({"grammar": "start: start"}, "it matches no text"),
        ({"grammar": "root ::= foo"}, "Rule 'foo' not found"),
    ],
)
def test_rejected_grammar_message(compiler, constraint, reason):
    with pytest.raises(UserError) as error:
        compiler.compile(StructuredOutputs(**constraint))
    message = str(error.value)
    assert reason in message
    assert message.endswith(".")
    assert not any(word in message for word in ("…", "\n", "coerce", "Enable", "NoExtension", "^"))


def test_unknown_message_is_truncated_between_words():
    message = grammar_error("word " * 100 + "\n   1 | start: x\n")
    assert message.startswith("word word")
    assert message.endswith("word …")
    assert len(message) <= MAX_CHARS
    assert grammar_error("") == "it is not valid"


def test_long_excerpt_is_not_searched():
    """The search is quadratic and would take hours on the whole excerpt."""
    excerpt = "x" * 1_000_000
    message = f"1(1000001): Expected token ':', found '\\n' (at \"\\n\")\n   1 | {excerpt}\n"
    assert grammar_error(message) == r"line 1: expected ':', got '\n'"
