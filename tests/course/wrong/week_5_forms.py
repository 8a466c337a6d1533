"""Wrong solutions for Week 5, days 4 and 5: grammars, reasoning, tool calls."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "5.4.1 structure",
        "accepts a comma before a closing brace",
        '"key" if self._open',
        '"key or end" if self._open',
    ),
    Wrong(
        "5.4.1 structure",
        "expects a key after every comma",
        '"key" if self._open[-1] == "{" else "value"',
        '"key"',
    ),
    Wrong(
        "5.4.1 structure",
        "rejects empty arrays",
        'case "value or end" | "next" if character == "]"',
        'case "next" if character == "]"',
    ),
    Wrong("5.4.1 structure", "expects no value after a colon", 'self._expected = "value"', "pass"),
    Wrong(
        "5.4.1 close",
        "any bracket closes any other",
        "bool(self._open) and self._open.pop() == bracket",
        "bool(self._open and self._open.pop())",
    ),
    Wrong(
        "5.4.1 close",
        "expects a value after a closing bracket",
        '_expected = "next"',
        '_expected = "value"',
    ),
    Wrong(
        "5.4.2 bits",
        "bits are unpacked highest first",
        ">> mx.arange(32)",
        ">> (31 - mx.arange(32))",
    ),
    Wrong("5.4.2 bits", "keeps bits beyond the vocabulary", "[:, :width]", ""),
    Wrong("5.4.2 mask", "masked logits are 0 instead of −∞", "-mx.inf", "0.0"),
    Wrong("5.4.2 mask", "the caller's logits are modified", "mx.array(logits)", "logits"),
    Wrong(
        "5.4.2 mask",
        "masks are applied to the first rows",
        "result[mx.array(constrained)]",
        "result[: len(constrained)]",
    ),
    Wrong(
        "5.4.3 plan",
        "takes a request's first masks, not its last",
        "range(num_masks - len(earlier) - 1, num_masks)",
        "(num_masks - jobs[-1].num_masks + n for n in range(len(earlier) + 1))",
    ),
    Wrong(
        "5.4.3 plan",
        "no mask after the last draft token",
        "jobs[-1].num_masks",
        "max(1, len(last.draft_tokens))",
    ),
    Wrong(
        "5.4.3 plan",
        "uses the first row's draft tokens",
        "last.draft_tokens",
        "[*earlier, last][0].draft_tokens",
    ),
    Wrong("5.4.4 forced", "drafts tokens that the grammar rejects", "tokens[:num_valid]", "tokens"),
    Wrong(
        "5.4.4 forced",
        "drafts at most one token",
        "tokens[:num_valid]",
        "tokens[: min(1, num_valid)]",
    ),
    Wrong(
        "5.4.4 propose",
        "the number of draft tokens is unbounded",
        "[:MAX_GRAMMAR_DRAFT_TOKENS]",
        "",
    ),
    Wrong(
        "5.4.4 propose",
        "drafts the last forced tokens, not the first",
        "[:MAX_GRAMMAR_DRAFT_TOKENS]",
        "[-MAX_GRAMMAR_DRAFT_TOKENS:]",
    ),
    Wrong(
        "5.5.1 prefix",
        "holds back the shortest prefix",
        "range(min(longest, len(text)), 0, -1)",
        "range(1, 1 + min(longest, len(text)))",
    ),
    Wrong("5.5.1 prefix", "checks only the first tag", "for tag in tags)", "for tag in tags[:1])"),
    Wrong(
        "5.5.1 prefix",
        "compares only the tag's first character",
        "tag.startswith(text[-length:])",
        "tag[0] == text[-length]",
    ),
    Wrong(
        "5.5.1 emit",
        "emits whitespace before a tag",
        "(self._buffer, tags)].rstrip()",
        "(self._buffer, tags)]",
    ),
    Wrong("5.5.1 emit", "emits text twice", "self._buffer[len(safe) :]", "self._buffer"),
    Wrong("5.5.1 emit", "held-back text is lost", "self._buffer[len(safe) :]", '""'),
    Wrong(
        "5.5.2 start",
        "does not wait for the rest of the tag",
        "elif text and not THINK_TAG.startswith(text):",
        "elif text:",
    ),
    Wrong(
        "5.5.2 start",
        "a tag after whitespace is treated as text",
        "self._buffer.lstrip()",
        "self._buffer",
    ),
    Wrong(
        "5.5.2 reasoning",
        "text after the end tag is lost",
        "self._buffer = rest",
        'self._buffer = ""',
    ),
    Wrong(
        "5.5.2 reasoning",
        "reasoning is held back until it ends",
        "self._emit(deltas, ReasoningDelta, (THINK_END_TAG,))",
        "pass",
    ),
    Wrong(
        "5.5.2 reasoning",
        "empty reasoning is emitted",
        "if reasoning.rstrip():",
        "if True:",
    ),
    Wrong(
        "5.5.3 peek",
        "does not wait for the rest of the tag",
        "self.has_ended or not any(tag.startswith(self.buffer) for tag in tags)",
        "self.buffer or self.has_ended",
    ),
    Wrong("5.5.3 peek", "peeking consumes the tag", "return tag", "return self.take(len(tag))"),
    Wrong("5.5.3 peek", "waits after the end of the output", "self.has_ended or ", ""),
    Wrong(
        "5.5.3 arguments",
        "stops at the end of the outer object",
        "scanner.feed(source.buffer, depth)",
        "scanner.feed(source.buffer)",
    ),
    Wrong(
        "5.5.3 arguments",
        "arguments are emitted only once complete",
        "if number:",
        "if is_complete:",
    ),
    Wrong("5.5.3 arguments", "waits forever on invalid text", "not is_valid or ", ""),
    Wrong(
        "5.5.3 hermes",
        "accepts any text after the tag",
        'not source.buffer.startswith("{")',
        "False",
    ),
    Wrong(
        "5.5.3 hermes",
        "whitespace before the tag is not skipped",
        """        yield from source.skip_space()
        yield from source.accept(START)
""",
        """        if not (yield from source.accept(START)):
            raise MalformedCallError
""",
    ),
    Wrong(
        "5.5.3 hermes",
        "requires the end tag",
        "yield from source.accept_end(END)",
        "yield from source.read_until((END,), '')",
    ),
    Wrong(
        "5.5.4 forced",
        "rejected draft tokens count as read",
        "progress = reduce(self._advance, draft_tokens, self._progress)",
        "progress = self._progress = reduce(self._advance, draft_tokens, self._progress)",
    ),
    Wrong(
        "5.5.4 forced",
        "the limit is exceeded by one token",
        ">= self._max_tokens",
        "> self._max_tokens",
    ),
    Wrong("5.5.4 forced", "every call recounts all tokens", "self._num_read += len(new)", "pass"),
    Wrong(
        "5.5.4 forced",
        "draft tokens do not count",
        "progress = reduce(self._advance, draft_tokens, self._progress)",
        "progress = self._progress",
    ),
    Wrong(
        "5.5.4 count",
        "the count restarts with each block",
        "progress.num_tokens, True)",
        "0, True)",
    ),
    Wrong(
        "5.5.4 count",
        "tokens after the reasoning count, too",
        "token == self._end or not progress.is_open",
        "token == self._end",
    ),
]
