"""Wrong solutions for Week 5, day 7: routing between replicas."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("5.7.1 key", "fields are in the client's order", "in FIELDS if", "in fields if"),
    Wrong(
        "5.7.1 text",
        "token ids are joined without a separator",
        '" ".join(texts)',
        '"".join(texts)',
    ),
    Wrong("5.7.1 text", "turns are in reverse order", "reversed(part)", "part"),
    Wrong(
        "5.7.1 text", "includes only the text of content parts", '("text", "content")', '("text",)'
    ),
    Wrong(
        "5.7.1 text",
        "booleans are treated as token ids",
        "isinstance(part, int) and not isinstance(part, bool)",
        "isinstance(part, int)",
    ),
    Wrong(
        "5.7.2 hashes",
        "a chunk's hash ignores the preceding chunks",
        "hash((previous, key[end - CHUNK_LENGTH : end]))",
        "hash(key[end - CHUNK_LENGTH : end])",
    ),
    Wrong(
        "5.7.2 hashes",
        "the whole prefix is hashed for each chunk",
        "hash((previous, key[end - CHUNK_LENGTH : end]))",
        "hash(key[:end])",
    ),
    Wrong(
        "5.7.2 hashes",
        "the partial last chunk is hashed, too",
        "range(CHUNK_LENGTH, len(key) + 1, CHUNK_LENGTH)",
        "range(CHUNK_LENGTH, len(key) + CHUNK_LENGTH, CHUNK_LENGTH)",
    ),
    Wrong(
        "5.7.2 hashes",
        "the last whole chunk is not hashed",
        "range(CHUNK_LENGTH, len(key) + 1, CHUNK_LENGTH)",
        "range(CHUNK_LENGTH, len(key), CHUNK_LENGTH)",
    ),
    Wrong(
        "5.7.2 match",
        "a look-up counts as a use",
        "return count * CHUNK_LENGTH",
        "return count * CHUNK_LENGTH\n            self._chunks.move_to_end(chunk)",
    ),
    Wrong(
        "5.7.2 insert",
        "the first chunk is evicted first",
        "reversed(chunk_hashes(key))",
        "chunk_hashes(key)",
    ),
    Wrong(
        "5.7.2 insert",
        "reuse does not refresh a chunk",
        "self._chunks.move_to_end(chunk)",
        "pass",
    ),
    Wrong("5.7.2 insert", "the newest chunks are evicted", "popitem(last=False)", "popitem()"),
    Wrong(
        "5.7.3 choose",
        "the load limit is absolute, not relative",
        "min(loads.values()) + self._max_imbalance",
        "self._max_imbalance",
    ),
    Wrong("5.7.3 choose", "the load limit is ignored", " if loads[one] <= limit", ""),
    Wrong(
        "5.7.3 choose",
        "any match counts",
        "match if match >= self._min_match * len(key) else 0",
        "match",
    ),
    Wrong(
        "5.7.3 choose",
        "load comes first; the match only breaks ties",
        "return -counts, loads[replica],",
        "return loads[replica], -counts,",
    ),
    Wrong(
        "5.7.3 choose",
        "the prompt is added to every replica's index",
        "self._indexes[chosen].insert(key)",
        "[self._indexes[one].insert(key) for one in loads]",
    ),
    Wrong(
        "5.7.3 choose",
        "the prompt is added to no index",
        "self._indexes[chosen].insert(key)",
        "pass",
    ),
    Wrong(
        "5.7.4 in-flight",
        "failed requests stay counted",
        "        finally:\n            if chosen in self.loads:",
        "        else:\n            if chosen in self.loads:",
    ),
    Wrong(
        "5.7.4 in-flight",
        "the error is swallowed",
        "            raise\n",
        "",
    ),
    Wrong(
        "5.7.4 in-flight",
        "a lost replica stays in rotation",
        "self.loads.pop(chosen, None)",
        "pass",
    ),
    Wrong(
        "5.7.4 in-flight",
        "losing a replica twice is an error",
        "self.loads.pop(chosen, None)",
        "del self.loads[chosen]",
    ),
    Wrong(
        "5.7.4 in-flight",
        "every error counts as a lost replica",
        "except ReplicaLostError:",
        "except Exception:",
    ),
    Wrong(
        "5.7.4 in-flight",
        "a lost replica's prompts stay in the index",
        "self._router.forget(chosen)",
        "pass",
    ),
]
