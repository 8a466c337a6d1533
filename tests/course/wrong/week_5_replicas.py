"""Mistakes of day 5.7."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("5.7.1 key", "the fields in the client's order", "in FIELDS if", "in fields if"),
    Wrong("5.7.1 text", "token ids without a separator", '" ".join(texts)', '"".join(texts)'),
    Wrong("5.7.1 text", "the last turn first", "reversed(part)", "part"),
    Wrong("5.7.1 text", "texts of content parts only", '("text", "content")', '("text",)'),
    Wrong(
        "5.7.1 text",
        "true and false as token ids",
        "isinstance(part, int) and not isinstance(part, bool)",
        "isinstance(part, int)",
    ),
    Wrong(
        "5.7.2 hashes",
        "the hash of a piece alone",
        "hash((previous, key[end - PIECE_LENGTH : end]))",
        "hash(key[end - PIECE_LENGTH : end])",
    ),
    Wrong(
        "5.7.2 hashes",
        "a hash of the rest, too",
        "range(PIECE_LENGTH, len(key) + 1, PIECE_LENGTH)",
        "range(PIECE_LENGTH, len(key) + PIECE_LENGTH, PIECE_LENGTH)",
    ),
    Wrong(
        "5.7.2 hashes",
        "the last whole piece is missing",
        "range(PIECE_LENGTH, len(key) + 1, PIECE_LENGTH)",
        "range(PIECE_LENGTH, len(key), PIECE_LENGTH)",
    ),
    Wrong(
        "5.7.2 match",
        "a question counts as a use",
        "return count * PIECE_LENGTH",
        "return count * PIECE_LENGTH\n            self._pieces.move_to_end(piece)",
    ),
    Wrong(
        "5.7.2 insert",
        "the first piece is evicted first",
        "reversed(piece_hashes(key))",
        "piece_hashes(key)",
    ),
    Wrong(
        "5.7.2 insert",
        "pieces stay where they first were",
        "self._pieces.move_to_end(piece)",
        "pass",
    ),
    Wrong("5.7.2 insert", "the newest pieces are evicted", "popitem(last=False)", "popitem()"),
    Wrong(
        "5.7.3 choose",
        "an absolute limit",
        "min(loads.values()) + self._max_imbalance",
        "self._max_imbalance",
    ),
    Wrong("5.7.3 choose", "no limit", " if loads[one] <= limit", ""),
    Wrong(
        "5.7.3 choose",
        "any match counts",
        "match if match >= self._min_match * len(key) else 0",
        "match",
    ),
    Wrong(
        "5.7.3 choose",
        "the least busy, and the match only breaks ties",
        "return -counts, loads[replica],",
        "return loads[replica], -counts,",
    ),
    Wrong(
        "5.7.3 choose",
        "all replicas are thought to have the prompt",
        "self._indexes[chosen].insert(key)",
        "[self._indexes[one].insert(key) for one in loads]",
    ),
    Wrong("5.7.3 choose", "nothing is remembered", "self._indexes[chosen].insert(key)", "pass"),
    Wrong(
        "5.7.4 in-flight",
        "requests that end early stay counted",
        "        finally:\n            if chosen in self.loads:",
        "        else:\n            if chosen in self.loads:",
    ),
    Wrong(
        "5.7.4 in-flight",
        "the loss is not reported",
        "            raise\n",
        "",
    ),
    Wrong("5.7.4 in-flight", "a lost replica stays", "self.loads.pop(chosen, None)", "pass"),
    Wrong(
        "5.7.4 in-flight",
        "a replica can be lost only once",
        "self.loads.pop(chosen, None)",
        "del self.loads[chosen]",
    ),
    Wrong(
        "5.7.4 in-flight", "every error is a loss", "except ReplicaLostError:", "except Exception:"
    ),
    Wrong("5.7.4 in-flight", "a lost cache is remembered", "self._router.forget(chosen)", "pass"),
]
