"""Wrong solutions for Week 7: agents."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("7.1.1 arguments", "empty arguments are an error", 'text or "{}"', "text"),
    Wrong(
        "7.1.1 arguments",
        "JSON decoding errors reach the caller",
        "except (ValueError, RecursionError)",
        "except KeyError",
    ),
    Wrong(
        "7.1.1 arguments",
        "deeply nested JSON raises RecursionError",
        "(ValueError, RecursionError)",
        "ValueError",
    ),
    Wrong(
        "7.1.1 arguments",
        "a number with too many digits raises ValueError",
        "(ValueError, RecursionError)",
        "(json.JSONDecodeError, RecursionError)",
    ),
    Wrong("7.1.1 arguments", "NaN is a number", ", parse_constant=reject_constant", ""),
    Wrong(
        "7.1.1 arguments",
        "strings of digits become numbers",
        'json.loads(text or "{}",',
        "json.loads(__import__('re').sub(r'\"(\\d+)\"', r'\\1', text or '{}'),",
    ),
    Wrong("7.1.1 arguments", "arguments are not validated", "if violations:", "if False:"),
    Wrong(
        "7.1.1 arguments",
        "the error omits the violations",
        "'; '.join(violations[:MAX_ERRORS])",
        "0",
    ),
    Wrong("7.1.1 arguments", "the error lists all violations", "[:MAX_ERRORS]", ""),
    Wrong(
        "7.1.2 call",
        "a tool's name is repaired",
        'name = call["function"]["name"]',
        'name = call["function"]["name"].strip().lower()',
    ),
    Wrong("7.1.2 call", "an unknown tool ends the run", "if name not in tools", "if False"),
    Wrong(
        "7.1.2 call",
        "the error does not list the tools",
        "; the available tools are {', '.join(tools)}",
        "",
    ),
    Wrong("7.1.2 call", "an OSError ends the run", "(ValueError, OSError)", "ToolError"),
    Wrong(
        "7.1.2 call", "a ValueError ends the run", "(ValueError, OSError)", "(ToolError, OSError)"
    ),
    Wrong("7.1.2 call", "bugs in tools are hidden", "(ValueError, OSError)", "Exception"),
    Wrong("7.1.2 call", "the result carries the tool's name as its id", 'call["id"]', "name"),
    Wrong(
        "7.1.2 call",
        "arguments are not validated",
        'parse_arguments(tools[name], call["function"]["arguments"])',
        'json.loads(call["function"]["arguments"])',
    ),
    Wrong(
        "7.1.3 step",
        "an empty message does not end the run",
        "if not calls:",
        'if not calls and message["content"]:',
    ),
    Wrong("7.1.3 step", "only the first call runs", "for call in calls:", "for call in calls[:1]:"),
    Wrong(
        "7.1.3 step",
        "calls run in reverse order",
        "for call in calls:",
        "for call in reversed(calls):",
    ),
    Wrong(
        "7.1.3 step",
        "sends the full transcript, not the context",
        "transcript.context,",
        "transcript.messages,",
    ),
    Wrong("7.1.3 step", "the seed is ignored", "self.definitions, seed)", "self.definitions, 0)"),
    Wrong(
        "7.1.3 step",
        "tool_calls: null is an error",
        'message.get("tool_calls") or []',
        'message["tool_calls"]',
    ),
    Wrong(
        "7.1.3 step",
        "calls after a failed one are skipped",
        "transcript.append(run_call(call, self.tools))",
        "result = run_call(call, self.tools)\n"
        "            transcript.append(result)\n"
        '            calls = [] if "error" in result["content"] else calls',
    ),
    Wrong(
        "7.1.4 resume", "max_steps is exceeded by one", "transcript.steps >=", "transcript.steps >"
    ),
    Wrong(
        "7.1.4 resume",
        "the step limit takes precedence over the answer",
        "            else:\n                self.step(transcript, seed)",
        "            elif self.step(transcript, seed) or transcript.steps >= self.max_steps:\n"
        '                transcript.stop_reason = "max_steps"\n'
        "            else:",
    ),
    Wrong(
        "7.1.4 resume",
        "the seed is ignored",
        "self.step(transcript, seed)",
        "self.step(transcript)",
    ),
    Wrong(
        "7.1.4 resume",
        "steps before a resume do not count",
        "while transcript.stop_reason is None:",
        "transcript.steps = 0\n        while transcript.stop_reason is None:",
    ),
    Wrong(
        "7.1.4 resume",
        "the limit is checked after the step",
        "            if transcript.steps >= self.max_steps:\n"
        '                transcript.stop_reason = "max_steps"\n'
        "            else:\n"
        "                self.step(transcript, seed)\n"
        "                on_step(transcript)\n",
        "            self.step(transcript, seed)\n"
        "            on_step(transcript)\n"
        "            if transcript.stop_reason is None and transcript.steps >= self.max_steps:\n"
        '                transcript.stop_reason = "max_steps"\n',
    ),
    Wrong(
        "7.1.4 resume",
        "a run that stopped at the limit never continues",
        'if transcript.stop_reason == "max_steps":',
        "if False:",
    ),
    Wrong(
        "7.1.4 resume",
        "an answered run continues",
        'if transcript.stop_reason == "max_steps":',
        "if transcript.stop_reason is not None:",
    ),
    Wrong(
        "7.2.1 resolve",
        "compares paths as strings",
        "resolved.is_relative_to(self.root)",
        "str(resolved).startswith(str(self.root))",
    ),
    Wrong("7.2.1 resolve", "symlinks are not resolved", "os.path.realpath", "os.path.abspath"),
    Wrong(
        "7.2.1 resolve",
        'rejects ".." instead of resolving paths',
        "if not resolved.is_relative_to(self.root):",
        'if ".." in path or path.startswith("/"):',
    ),
    Wrong(
        "7.2.1 resolve",
        "rejects symlinks inside the workspace",
        "if not resolved.is_relative_to(self.root):",
        "if resolved != Path(os.path.abspath(self.root / path)) or "
        "not resolved.is_relative_to(self.root):",
    ),
    Wrong(
        "7.2.2 replace",
        "replaces the first of several occurrences",
        "if text.find(old, first + 1) >= 0",
        "if False",
    ),
    Wrong("7.2.2 replace", "misses overlapping occurrences", "first + 1", "first + len(old)"),
    Wrong("7.2.2 replace", "a missing text is not an error", "if first < 0", "if False"),
    Wrong(
        "7.2.2 replace",
        "both errors have the same message",
        "old occurs several times; include the lines before and after it",
        "old does not occur in the file; read the file and copy the text exactly",
    ),
    Wrong(
        "7.2.3 write",
        "the temporary file is in another folder",
        "mkstemp(dir=path.parent)",
        "mkstemp()",
    ),
    Wrong(
        "7.2.3 write", "the file is not synced to disk", "            os.fsync(file.fileno())\n", ""
    ),
    Wrong("7.2.3 write", "Python's buffer is not flushed", "            file.flush()\n", ""),
    Wrong("7.2.3 write", "existing permissions are not kept", "if path.exists():", "if False:"),
    Wrong("7.2.3 write", "temporary files are left behind", "os.unlink(name)", "pass"),
    Wrong(
        "7.2.3 write",
        "no cleanup after KeyboardInterrupt",
        "except BaseException",
        "except Exception",
    ),
    Wrong(
        "7.2.3 write",
        "overwrites the old file in place",
        "os.replace(name, path)",
        "os.fsync(os.open(name, 0)) or path.write_bytes(data) or os.unlink(name)",
    ),
    Wrong("7.2.4 truncate", "keeps only the head", "kept // 2", "0"),
    Wrong(
        "7.2.4 truncate",
        "the note's length does not count toward the limit",
        "limit - len(",
        "limit - 0 * len(",
    ),
    Wrong(
        "7.2.4 truncate",
        "the note gives the kept length, not the cut one",
        "truncation_note(len(text) - kept,",
        "truncation_note(kept,",
    ),
    Wrong("7.2.4 truncate", "loses characters", "head = kept - tail", "head = kept // 2 - 1"),
    Wrong(
        "7.2.4 truncate",
        "truncates a text that just fits",
        "len(text) <= limit",
        "len(text) < limit",
    ),
    Wrong(
        "7.3.1 old",
        "keeps messages instead of turns",
        "turn_starts(messages)[-keep_turns:]",
        "[len(messages) - keep_turns]",
    ),
    Wrong("7.3.1 old", "keeps one turn too many", "[-keep_turns:]", "[-keep_turns - 1:]"),
    Wrong(
        "7.3.1 old", "includes messages other than tool results", 'if message["role"] == "tool"', ""
    ),
    Wrong(
        "7.3.1 old",
        "counts tool results instead of turns",
        "turn_starts(messages)[-keep_turns:]",
        '[i for i, m in enumerate(messages) if m["role"] == "tool"][-keep_turns:]',
    ),
    Wrong(
        "7.3.2 drop",
        "every drop adds another note",
        'if head[-1]["content"] != DROPPED_NOTE',
        "if True",
    ),
    Wrong(
        "7.3.2 drop",
        "adds no note",
        "head.append(",
        "list(",
    ),
    Wrong(
        "7.3.2 drop",
        "the note does not count towards the target",
        "if num_chars(shorter) <= target",
        "if num_chars([*messages[: starts[0]], *messages[start:]]) <= target",
    ),
    Wrong(
        "7.3.2 drop",
        "drops single messages instead of turns",
        "starts[1 : len(starts) - keep_turns + 1]",
        "range(starts[0] + 1, starts[-keep_turns] + 1)",
    ),
    Wrong("7.3.2 drop", "keeps one turn too few", "- keep_turns + 1]", "- keep_turns + 2]"),
    Wrong("7.3.2 drop", "drops as many turns as possible", "break", "pass"),
    Wrong("7.3.2 drop", "drops the task", "messages[: starts[0]]", "messages[:1]"),
    Wrong(
        "7.3.3 compact",
        "compacts to the limit, not to the target",
        "if num_chars(compacted) <= self.target",
        "if num_chars(compacted) <= self.limit",
    ),
    Wrong(
        "7.3.3 compact",
        "compacts above the target, not the limit",
        "if num_chars(messages) <= self.limit",
        "if num_chars(messages) <= self.target",
    ),
    Wrong(
        "7.3.3 compact",
        "modifies the caller's messages",
        'compacted[index] = {**messages[index], "content": short}',
        'compacted[index]["content"] = short',
    ),
    Wrong("7.3.3 compact", "shortens all old results", "break", "pass"),
    Wrong(
        "7.3.3 compact",
        "shortens the newest results first",
        "in old_results(messages, self.keep_turns)",
        "in reversed(old_results(messages, self.keep_turns))",
    ),
    Wrong(
        "7.3.3 compact",
        "loses the tool call's id",
        '{**messages[index], "content": short}',
        '{"role": "tool", "content": short}',
    ),
    Wrong(
        "7.3.3 compact",
        "never drops turns",
        "return drop_turns(compacted, self.target, self.keep_turns)",
        "return compacted",
    ),
]
