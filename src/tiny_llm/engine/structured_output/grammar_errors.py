"""User-facing versions of llguidance's error messages.

The library's messages contain positions in its source code, options that only its callers can set,
and multi-line excerpts of the grammar.
"""

import re
import textwrap

from ..inputs.structured_outputs import NESTED_TOO_DEEPLY

MAX_CHARS = 200  # maximum length of a clause in an error message
# Characters searched at each end of a message: messages quote the client's grammar, and the search
# takes quadratic time.
MAX_SEARCHED_CHARS = 1_000

# (pattern in the library's message, clause that replaces the message).
MESSAGE_REWRITES = (
    (r"NoExtension", "it matches no text"),
    (r"^recursion limit exceeded", NESTED_TOO_DEEPLY),
    (
        r"oneOf constraints are not supported",
        "the alternatives of oneOf may match the same value, which is not supported; use anyOf",
    ),
    (r"Unimplemented keys: \[(.+?)\]", r"unsupported keywords in the JSON schema: \1"),
    (r"Unknown format: (.+)", r"the format '\1' is not supported"),
    (r"Invalid type: (.+)", r"'\1' is not a JSON Schema type"),
    (r"Pointer '(.*?)' does not exist", r"the $ref '#\1' does not exist in the JSON schema"),
    (r"Resource '(.*?)' is not present", r"the $ref '\1' points outside the JSON schema"),
    (r"Expected f64 for '(.+?)', got (.+)", r"\1 in the JSON schema must be a number, got \2"),
    (r"(\w+ must be an? .+)", r"in the JSON schema, \1"),
    (r"Unsatisfiable schema: (.+)", r"no value matches the JSON schema: \1"),
    (r"regex parse error:(?s:.)+error: (.+)", r"invalid regular expression: \1"),
    (r"lookarounds not supported", "look-around in regular expressions is not supported"),
    (r"duplicate rule: (\".+?\")", r"the rule \1 is defined twice"),
    (r"unknown name: (\".+?\")", r"the rule \1 is not defined"),
    (r"no start rule found", 'the rule "start" is not defined'),
    (r"unknown special token: (\".+?\")", r"\1 is not a special token of the model"),
    (r"Unknown common regex: ([\w.]+)", r"unknown common regex \1"),
    (r"(\d+)\(\d+\): Expected token (.+?), found (.+?) \(at", r"line \1: expected \2, got \3"),
)


def grammar_error(message: str) -> str:
    """Condenses an llguidance error to one clause, without a period."""
    if len(message) > 2 * MAX_SEARCHED_CHARS:
        message = f"{message[:MAX_SEARCHED_CHARS]} … {message[-MAX_SEARCHED_CHARS:]}"
    for pattern, clause in MESSAGE_REWRITES:
        found = re.search(pattern, message)
        if found is not None:
            message = found.expand(clause)
            break
    text = message.partition("\n   1 |")[0].replace("<non-verbose/>", "")
    return textwrap.shorten(text, MAX_CHARS, placeholder=" …").rstrip(". ") or "it is not valid"
