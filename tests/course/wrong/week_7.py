"""Mistakes of Week 7: agents."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("7.1.1 arguments", "no text is an error", 'text or "{}"', "text"),
    Wrong(
        "7.1.1 arguments",
        "JSON's error reaches the caller",
        "except (ValueError, RecursionError)",
        "except KeyError",
    ),
    Wrong("7.1.1 arguments", "deeply nested JSON", "(ValueError, RecursionError)", "ValueError"),
    Wrong("7.1.1 arguments", "no validation", "if violations:", "if False:"),
    Wrong(
        "7.1.1 arguments", "says only that it is invalid", "'; '.join(violations[:MAX_ERRORS])", "0"
    ),
    Wrong("7.1.1 arguments", "all violations", "[:MAX_ERRORS]", ""),
    Wrong("7.1.2 call", "an unknown tool ends the run", "if name not in tools", "if False"),
    Wrong(
        "7.1.2 call", "does not list the tools", "; the available tools are {', '.join(tools)}", ""
    ),
    Wrong(
        "7.1.2 call", "an error of the system ends the run", "(ValueError, OSError)", "ToolError"
    ),
    Wrong("7.1.2 call", "hides our own mistakes", "(ValueError, OSError)", "Exception"),
    Wrong("7.1.2 call", "the name in place of the id", 'call["id"]', "name"),
    Wrong(
        "7.1.2 call",
        "arguments that are not validated",
        'parse_arguments(tools[name], call["function"]["arguments"])',
        'json.loads(call["function"]["arguments"])',
    ),
    Wrong("7.1.3 step", "the first call only", "for call in calls:", "for call in calls[:1]:"),
    Wrong("7.1.3 step", "last call first", "for call in calls:", "for call in reversed(calls):"),
    Wrong("7.1.3 step", "sends the whole record", "transcript.context,", "transcript.messages,"),
    Wrong("7.1.3 step", "always the same seed", "self.definitions, seed)", "self.definitions, 0)"),
    Wrong("7.1.3 step", "calls: null", 'message.get("tool_calls") or []', 'message["tool_calls"]'),
    Wrong(
        "7.1.3 step",
        "an error ends the run",
        "transcript.append(run_call(call, self.tools))",
        "result = run_call(call, self.tools)\n"
        "            transcript.append(result)\n"
        '            calls = [] if "error" in result["content"] else calls',
    ),
    Wrong("7.1.4 resume", "one step too many", "transcript.steps >=", "transcript.steps >"),
    Wrong(
        "7.1.4 resume",
        "the limit before the answer",
        "            else:\n                self.step(transcript, seed)",
        "            elif self.step(transcript, seed) or transcript.steps >= self.max_steps:\n"
        '                transcript.stop_reason = "max_steps"\n'
        "            else:",
    ),
    Wrong(
        "7.1.4 resume",
        "always the same seed",
        "self.step(transcript, seed)",
        "self.step(transcript)",
    ),
    Wrong(
        "7.1.4 resume",
        "the limit counts this call's steps",
        "while transcript.stop_reason is None:",
        "transcript.steps = 0\n        while transcript.stop_reason is None:",
    ),
    Wrong(
        "7.2.1 resolve",
        "compares texts",
        "resolved.is_relative_to(self.root)",
        "str(resolved).startswith(str(self.root))",
    ),
    Wrong("7.2.1 resolve", "links are not followed", "os.path.realpath", "os.path.abspath"),
    Wrong(
        "7.2.1 resolve",
        "forbids dots in place of resolving",
        "if not resolved.is_relative_to(self.root):",
        'if ".." in path or path.startswith("/"):',
    ),
    Wrong(
        "7.2.1 resolve",
        "a link may not lead inside either",
        "if not resolved.is_relative_to(self.root):",
        "if resolved != Path(os.path.abspath(self.root / path)) or "
        "not resolved.is_relative_to(self.root):",
    ),
    Wrong(
        "7.2.2 replace",
        "replaces the first of several",
        "if text.find(old, first + 1) >= 0",
        "if False",
    ),
    Wrong("7.2.2 replace", "misses overlapping texts", "first + 1", "first + len(old)"),
    Wrong("7.2.2 replace", "no text, no error", "if first < 0", "if False"),
    Wrong(
        "7.2.2 replace",
        "one message for both",
        "old occurs several times; include the lines before and after it",
        "old does not occur in the file; read the file and copy the text exactly",
    ),
    Wrong("7.2.3 write", "a temporary file elsewhere", "mkstemp(dir=path.parent)", "mkstemp()"),
    Wrong("7.2.3 write", "not on the disk", "            os.fsync(file.fileno())\n", ""),
    Wrong("7.2.3 write", "still in Python's buffer", "            file.flush()\n", ""),
    Wrong("7.2.3 write", "private files", "if path.exists():", "if False:"),
    Wrong("7.2.3 write", "leaves temporary files", "os.unlink(name)", "pass"),
    Wrong("7.2.3 write", "cleans up errors only", "except BaseException", "except Exception"),
    Wrong(
        "7.2.3 write",
        "copies over the old file",
        "os.replace(name, path)",
        "os.fsync(os.open(name, 0)) or path.write_bytes(data) or os.unlink(name)",
    ),
    Wrong("7.2.4 truncate", "the head alone", "kept // 2", "0"),
    Wrong("7.2.4 truncate", "the note is not counted", "limit - len(", "limit - 0 * len("),
    Wrong("7.2.4 truncate", "says what is kept", "cut_note(len(text) - kept,", "cut_note(kept,"),
    Wrong("7.2.4 truncate", "loses a character", "head = kept - tail", "head = kept // 2 - 1"),
    Wrong("7.2.4 truncate", "cuts a text that fits", "len(text) <= limit", "len(text) < limit"),
    Wrong(
        "7.3.1 old",
        "the last messages",
        "turn_starts(messages)[-keep_turns:]",
        "[len(messages) - keep_turns]",
    ),
    Wrong("7.3.1 old", "one turn too few", "[-keep_turns:]", "[-keep_turns - 1:]"),
    Wrong("7.3.1 old", "all messages", 'if message["role"] == "tool"', ""),
    Wrong(
        "7.3.1 old",
        "a turn is a result",
        "turn_starts(messages)[-keep_turns:]",
        '[i for i, m in enumerate(messages) if m["role"] == "tool"][-keep_turns:]',
    ),
    Wrong("7.3.2 drop", "a note every time", 'if head[-1]["content"] != NOTE', "if True"),
    Wrong(
        "7.3.2 drop",
        "no note",
        "head.append(",
        "list(",
    ),
    Wrong(
        "7.3.2 drop",
        "message by message",
        "starts[1 : len(starts) - keep_turns + 1]",
        "range(starts[0] + 1, starts[-keep_turns] + 1)",
    ),
    Wrong("7.3.2 drop", "one turn too few is kept", "- keep_turns + 1]", "- keep_turns + 2]"),
    Wrong("7.3.2 drop", "as many as possible", "break", "pass"),
    Wrong("7.3.2 drop", "drops the task", "messages[: starts[0]]", "messages[:1]"),
    Wrong(
        "7.3.3 compact",
        "no lower than the limit",
        "if size(compacted) <= self.target",
        "if size(compacted) <= self.limit",
    ),
    Wrong(
        "7.3.3 compact",
        "at every turn",
        "if size(messages) <= self.limit",
        "if size(messages) <= self.target",
    ),
    Wrong(
        "7.3.3 compact",
        "changes the messages in place",
        'compacted[index] = {**messages[index], "content": short}',
        'compacted[index]["content"] = short',
    ),
    Wrong("7.3.3 compact", "all old results", "break", "pass"),
    Wrong(
        "7.3.3 compact",
        "the newest first",
        "in old_results(messages, self.keep_turns)",
        "in reversed(old_results(messages, self.keep_turns))",
    ),
    Wrong(
        "7.3.3 compact",
        "loses the id",
        '{**messages[index], "content": short}',
        '{"role": "tool", "content": short}',
    ),
    Wrong(
        "7.3.3 compact",
        "never drops",
        "return drop_turns(compacted, self.target, self.keep_turns)",
        "return compacted",
    ),
]
