"""Wrong solutions for Week 5, days 1 and 2: the server."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "5.1.1 event",
        "events end with a single newline",
        'to_json(data) + b"\\n\\n"',
        'to_json(data) + b"\\n"',
    ),
    Wrong("5.1.1 event", "Python's repr instead of JSON", "to_json(data)", "repr(data).encode()"),
    Wrong(
        "5.1.1 fill",
        "the text is not JSON-escaped",
        "to_json(text)",
        "b'\"' + text.encode() + b'\"'",
    ),
    Wrong(
        "5.1.1 template",
        "the placeholder keeps its quotes",
        "to_json(TEXT_PLACEHOLDER)",
        "to_json(TEXT_PLACEHOLDER)[1:-1]",
    ),
    Wrong("5.1.2 outputs", "empty batches are written", "if data:", "if True:"),
    Wrong(
        "5.1.2 outputs",
        "sends without awaiting the client",
        "await self._send(send, data)",
        "asyncio.ensure_future(self._send(send, data))",
    ),
    Wrong("5.1.2 outputs", "no start events", "self._make_start_events()", "pass"),
    Wrong(
        "5.1.2 send",
        "headers are sent with every write",
        "self._headers_sent = True  # before `await`, when a keep-alive may be sent",
        "pass",
    ),
    Wrong(
        "5.1.2 send",
        "headers are marked as sent after the await",
        """            self._headers_sent = True  # before `await`, when a keep-alive may be sent
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
    Wrong("5.1.2 send", "start events are lost", '(self._start_data or b"") + data', "data"),
    Wrong("5.1.2 send", "the first chunk ends the body", "not is_last", "is_last"),
    Wrong(
        "5.1.3 errors",
        "the exception's text is sent to the client",
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
        "a cancellation is reported as an error",
        "except Exception:",
        "except BaseException:",
    ),
    Wrong(
        "5.1.3 errors",
        "errors are not logged",
        'log.exception("stream failed")',
        "pass",
    ),
    Wrong(
        "5.1.3 errors", "keep-alives continue after the end", "self._cancel_keep_alive()", "pass"
    ),
    Wrong("5.1.3 errors", "the body is never ended", "is_last=True", "is_last=False"),
    Wrong(
        "5.1.4 wait",
        "any message counts as a disconnect",
        """while (await receive())["type"] != "http.disconnect":
        pass""",
        "await receive()",
    ),
    Wrong("5.1.4 cancel", "cancels after the block has ended", "if not self._is_done:", "if True:"),
    Wrong(
        "5.1.4 leave",
        "every cancellation is suppressed",
        "is_ours and self._task.uncancel() == 0",
        "kind is asyncio.CancelledError",
    ),
    Wrong(
        "5.1.4 leave",
        "a second cancellation is suppressed, too",
        "is_ours and self._task.uncancel() == 0",
        "is_ours and self._task.uncancel() >= 0",
    ),
    Wrong(
        "5.1.4 leave",
        "an error after a disconnect is suppressed",
        "self._was_cancelled and kind is asyncio.CancelledError",
        "self._was_cancelled",
    ),
    Wrong("5.1.4 leave", "the request is not aborted", "self._stream.close()", "pass"),
    Wrong("5.1.4 leave", "the watcher task leaks", "self._disconnect_task.cancel()", "pass"),
    Wrong(
        "5.1.4 abort",
        "the request is forgotten before it has ended",
        "self._streams[request_id] = None",
        "del self._streams[request_id]",
    ),
    Wrong(
        "5.1.4 abort",
        "finished prompts are aborted, too",
        "if request_id in self._streams:",
        "if True:",
    ),
    Wrong(
        "5.1.4 abort",
        "aborted requests still count as in flight",
        "self.in_flight.discard(stream)",
        "pass",
    ),
    Wrong(
        "5.1.4 abort",
        "waiters for an idle server are not notified",
        "self._update_idle()",
        "pass",
    ),
    Wrong("5.2.1 put", "the queue is unbounded", "len(self._items) >= self._limit", "False"),
    Wrong(
        "5.2.1 put",
        "a full queue drops outputs",
        " and self._merge(item):",
        ":",
    ),
    Wrong(
        "5.2.1 merge",
        "new output is merged into the oldest one",
        "reversed(range(len(self._items)))",
        "range(len(self._items))",
    ),
    Wrong(
        "5.2.1 merge",
        "outputs of different requests are merged",
        "_completion(old) == _completion(new)",
        "old.index == new.index",
    ),
    Wrong("5.2.1 outputs", "merging keeps only the newest text", "old.text + new.text", "new.text"),
    Wrong(
        "5.2.1 outputs",
        "merging loses the finish reason",
        "return new._replace(",
        "return old._replace(",
    ),
    Wrong(
        "5.2.1 outputs",
        "merging loses the first-output flag",
        "is_first=old.is_first",
        "is_first=new.is_first",
    ),
    Wrong("5.2.1 outputs", "missing logprobs become an empty tuple", "or ()) or None", "or ())"),
    Wrong(
        "5.2.2 get",
        "outputs are delivered one at a time",
        """items = list(self._items)
        self._items.clear()""",
        "items = [self._items.popleft()]",
    ),
    Wrong("5.2.2 get", "outputs are delivered twice", "self._items.clear()", "pass"),
    Wrong("5.2.2 get", "returns an empty list instead of waiting", "await self._waiter", "pass"),
    Wrong(
        "5.2.3 round",
        "every step waits for a command",
        "wait=not has_work",
        "wait=True",
    ),
    Wrong(
        "5.2.3 round",
        "one command is handled per step",
        "outputs += self._handle_command(llm, command)",
        """outputs += self._handle_command(llm, command)
                break""",
    ),
    Wrong(
        "5.2.3 round",
        "pending warm-up prefixes do not count as work",
        "llm.has_unfinished_requests or bool(self._warmup_prefixes)",
        "llm.has_unfinished_requests",
    ),
    Wrong("5.2.3 round", "memory is never trimmed", "self._trim_memory(llm)", "pass"),
    Wrong("5.2.3 round", "memory is trimmed before every step", "if not has_work:", "if True:"),
    Wrong(
        "5.2.3 round",
        "unloading a model ends the thread",
        "return isinstance(command, messages.UnloadModel)",
        "return False",
    ),
    Wrong(
        "5.2.3 round",
        "the commands' outputs are lost",
        "outputs += self._step(llm)",
        "outputs = list(self._step(llm))",
    ),
    Wrong(
        "5.2.3 drain",
        "waits without a timeout",
        "get(timeout=MEMORY_CHECK_INTERVAL)",
        "get()",
    ),
    Wrong("5.2.3 drain", "waits again after each command", "wait = False", "pass"),
    Wrong(
        "5.2.3 drain",
        "every timeout ends the wait",
        "wait = not llm.check_memory()",
        "wait = llm.check_memory()",
    ),
    Wrong(
        "5.2.4 post",
        "messages are delivered on the engine thread",
        "self._loop.call_soon_threadsafe(self._flush)",
        "self._flush()",
    ),
    Wrong(
        "5.2.4 post",
        "calls call_soon, which is not thread-safe",
        "call_soon_threadsafe",
        "call_soon",
    ),
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
