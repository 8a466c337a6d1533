"""Mistakes of the server's days."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "5.1.1 event",
        "one newline at the end of an event",
        'to_json(data) + b"\\n\\n"',
        'to_json(data) + b"\\n"',
    ),
    Wrong("5.1.1 event", "Python's repr for JSON", "to_json(data)", "repr(data).encode()"),
    Wrong(
        "5.1.1 fill",
        "the text as it is",
        "to_json(text)",
        "b'\"' + text.encode() + b'\"'",
    ),
    Wrong(
        "5.1.1 template",
        "quotes left around the hole",
        "to_json(TEXT_PLACEHOLDER)",
        "to_json(TEXT_PLACEHOLDER)[1:-1]",
    ),
    Wrong("5.1.2 outputs", "an empty write", "if data:", "if True:"),
    Wrong(
        "5.1.2 outputs",
        "the next batch does not wait for the client",
        "await self._send(send, data)",
        "asyncio.ensure_future(self._send(send, data))",
    ),
    Wrong("5.1.2 outputs", "no start events", "self._make_start_events()", "pass"),
    Wrong(
        "5.1.2 send",
        "headers with every write",
        "self._headers_sent = True  # before `await`, which lets a keep-alive run",
        "pass",
    ),
    Wrong(
        "5.1.2 send",
        "headers marked as sent when they have been sent",
        """            self._headers_sent = True  # before `await`, which lets a keep-alive run
            data = (self._start_data or b"") + data
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
""",
        """            data = (self._start_data or b"") + data
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            self._headers_sent = True
""",
    ),
    Wrong("5.1.2 send", "start events lost", '(self._start_data or b"") + data', "data"),
    Wrong("5.1.2 send", "the body ends with its first piece", "not is_last", "is_last"),
    Wrong(
        "5.1.3 errors",
        "the exception's text for the client",
        """        except Exception:
            log.exception("stream failed")
            last = self._error_events(ApiError(500, INTERNAL_ERROR))
""",
        """        except Exception as error:
            log.exception("stream failed")
            last = self._error_events(ApiError(500, str(error)))
""",
    ),
    Wrong(
        "5.1.3 errors",
        "a cancellation as an error",
        "except Exception:",
        "except BaseException:",
    ),
    Wrong(
        "5.1.3 errors",
        "an error without a line in the log",
        'log.exception("stream failed")',
        "pass",
    ),
    Wrong("5.1.3 errors", "keep-alives after the end", "self._cancel_keep_alive()", "pass"),
    Wrong("5.1.3 errors", "a body without an end", "is_last=True", "is_last=False"),
    Wrong(
        "5.1.4 wait",
        "any message is a disconnect",
        """while (await receive())["type"] != "http.disconnect":
        pass""",
        "await receive()",
    ),
    Wrong("5.1.4 cancel", "a cancel after the block", "if not self._is_done:", "if True:"),
    Wrong(
        "5.1.4 leave",
        "every cancellation is suppressed",
        "is_ours and self._task.uncancel() == 0",
        "kind is asyncio.CancelledError",
    ),
    Wrong(
        "5.1.4 leave",
        "a second cancellation is suppressed with the first",
        "is_ours and self._task.uncancel() == 0",
        "is_ours and self._task.uncancel() >= 0",
    ),
    Wrong("5.1.4 leave", "the request goes on", "self._handle.close()", "pass"),
    Wrong("5.1.4 leave", "the watcher stays", "self._disconnect_task.cancel()", "pass"),
    Wrong(
        "5.1.4 abort",
        "the request is forgotten at once",
        "self._handles[request_id] = None",
        "del self._handles[request_id]",
    ),
    Wrong(
        "5.1.4 abort",
        "ended prompts are aborted, too",
        "if request_id in self._handles:",
        "if True:",
    ),
    Wrong("5.1.4 abort", "still in flight", "self.in_flight.discard(handle)", "pass"),
    Wrong(
        "5.1.4 abort",
        "nothing wakes those who wait for an idle server",
        "self._update_idle()",
        "pass",
    ),
    Wrong("5.2.1 put", "no limit", "len(self._items) >= self._limit", "False"),
    Wrong(
        "5.2.1 put",
        "outputs dropped from a full queue",
        """if self._merge(item):
                return""",
        "return",
    ),
    Wrong(
        "5.2.1 put",
        "full since the newest output",
        "self._full_since or self._clock()",
        "self._clock()",
        noticed_by="5.2.2",
    ),
    Wrong(
        "5.2.1 merge",
        "merged into the oldest output",
        "reversed(range(len(self._items)))",
        "range(len(self._items))",
    ),
    Wrong(
        "5.2.1 merge",
        "completions of several requests mixed",
        "_completion(old) == _completion(new)",
        "old.index == new.index",
    ),
    Wrong("5.2.1 outputs", "only the newest text", "old.text + new.text", "new.text"),
    Wrong(
        "5.2.1 outputs",
        "the end of the completion lost",
        """dataclasses.replace(
        new,""",
        """dataclasses.replace(
        old,""",
    ),
    Wrong("5.2.1 outputs", "no first output", "is_first=old.is_first", "is_first=new.is_first"),
    Wrong("5.2.1 outputs", "an empty list for no logprobs", "or []) or None", "or [])"),
    Wrong(
        "5.2.2 get",
        "one output at a time",
        """items = list(self._items)
        self._items.clear()""",
        "items = [self._items.popleft()]",
    ),
    Wrong("5.2.2 get", "outputs delivered again", "self._items.clear()", "pass"),
    Wrong("5.2.2 get", "a stall never ends", "self._full_since = None", "pass"),
    Wrong("5.2.2 get", "an empty list instead of a wait", "await self._waiter", "pass"),
    Wrong(
        "5.2.2 stalled",
        "a full queue is a stall",
        "return False",
        "return len(self._items) >= self._limit",
    ),
    Wrong(
        "5.2.2 stalled",
        "a stall from the first moment",
        "self._clock() - self._full_since > self._stall_timeout",
        "True",
    ),
    Wrong(
        "5.2.3 round",
        "a wait for a command before every step",
        "wait=not has_work",
        "wait=True",
    ),
    Wrong(
        "5.2.3 round",
        "one command for each step",
        "updates += self._handle_command(llm, command)",
        """updates += self._handle_command(llm, command)
                break""",
    ),
    Wrong(
        "5.2.3 round",
        "a likely prefix is no work",
        "llm.has_unfinished_requests or bool(self._warmup_prefixes)",
        "llm.has_unfinished_requests",
    ),
    Wrong(
        "5.2.3 round",
        "unloading ends the thread",
        "return isinstance(command, messages.UnloadModel)",
        "return False",
    ),
    Wrong(
        "5.2.3 round",
        "only the step's outputs reported",
        "updates += self._step(llm)",
        "updates = list(self._step(llm))",
    ),
    Wrong(
        "5.2.3 drain",
        "a wait without an end",
        "get(timeout=MEMORY_CHECK_INTERVAL)",
        "get()",
    ),
    Wrong("5.2.3 drain", "a wait after each command", "wait = False", "pass"),
    Wrong(
        "5.2.3 drain",
        "a round for each timeout",
        "wait = not llm.check_memory()",
        "wait = llm.check_memory()",
    ),
    Wrong(
        "5.2.4 post",
        "delivered by the engine's thread",
        "self._loop.call_soon_threadsafe(self._flush)",
        "self._flush()",
    ),
    Wrong("5.2.4 post", "a call that is not thread-safe", "call_soon_threadsafe", "call_soon"),
    Wrong(
        "5.2.4 post",
        "every token wakes the loop",
        "if not can_wait or time.monotonic() >= self._next_flush:",
        "if True:",
    ),
    Wrong(
        "5.2.4 post",
        "only urgent messages wake the loop",
        "if not can_wait or time.monotonic() >= self._next_flush:",
        "if not can_wait:",
    ),
    Wrong(
        "5.2.4 post",
        "a closed loop ends the engine",
        "contextlib.suppress(RuntimeError)",
        "contextlib.suppress()",
    ),
]
