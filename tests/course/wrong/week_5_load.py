"""Mistakes of Week 5: load, and n-gram drafts."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("5.3.1 arrivals", "the rate as the mean gap", "1 / rate", "rate"),
    Wrong("5.3.1 arrivals", "gaps as arrivals", "np.cumsum(gaps)", "gaps"),
    Wrong(
        "5.3.1 arrivals",
        "equal gaps",
        "rng.exponential(1 / rate, num_requests - 1)",
        "np.full(num_requests - 1, 1 / rate)",
    ),
    Wrong(
        "5.3.1 arrivals",
        "uniformly distributed gaps",
        "rng.exponential(1 / rate, num_requests - 1)",
        "rng.uniform(0, 2 / rate, num_requests - 1)",
    ),
    Wrong("5.3.1 arrivals", "one gap too many", "num_requests - 1", "num_requests"),
    Wrong("5.3.2 record", "an event is a token", "+= num_tokens", "+= 1"),
    Wrong("5.3.2 record", "the first token is the latest", "self.num_tokens == 0", "True"),
    Wrong("5.3.2 tpot", "as many gaps as tokens", "(self.num_tokens - 1)", "self.num_tokens"),
    Wrong("5.3.2 tpot", "counted from the arrival", "- self.first_token", "- self.arrival"),
    Wrong("5.3.2 tpot", "no time for a single token", "return None", "return 0.0"),
    Wrong(
        "5.3.3 loop",
        "latencies from the time of sending",
        "RequestTimes(started + arrival)",
        "RequestTimes(clock())",
    ),
    Wrong(
        "5.3.3 loop",
        "one new request per step",
        "while pending and started",
        "if pending and started",
    ),
    Wrong(
        "5.3.3 loop",
        "requests wait for an idle engine",
        "while pending and started",
        "while pending and not llm.has_unfinished_requests and started",
    ),
    Wrong(
        "5.3.3 loop",
        "ends with the last arrival",
        "while pending or llm.has_unfinished_requests",
        "while pending",
    ),
    Wrong(
        "5.3.3 loop",
        "a negative sleep",
        "max(0.0, started + pending[0][2] - clock())",
        "started + pending[0][2] - clock()",
    ),
    Wrong("5.3.4 percentile", "the next value", "[rank - 1]", "[min(rank, len(values) - 1)]"),
    Wrong(
        "5.3.4 percentile",
        "rounded down",
        "math.ceil(len(values) * percent / 100)",
        "max(1, int(len(values) * percent / 100))",
    ),
    Wrong("5.3.4 percentile", "values in order of arrival", "sorted(values)", "values"),
    Wrong(
        "5.3.4 is-met",
        "only the first token counts",
        "(request.tpot is None or request.tpot <= self.tpot)",
        "True",
    ),
    Wrong("5.3.4 is-met", "either bound suffices", "self.ttft and", "self.ttft or"),
    Wrong("5.3.4 goodput", "a share instead of a rate", "/ seconds", "/ len(requests)"),
    Wrong("5.3.4 goodput", "every request", "sum(map(slo.is_met, requests))", "len(requests)"),
    Wrong(
        "5.3.4 goodput",
        "the time between arrivals",
        "max(one.last_token for one in requests)",
        "max(one.arrival for one in requests)",
    ),
    Wrong("5.6.1 verify", "without the target's own token", "num_accepted + 1", "num_accepted"),
    Wrong(
        "5.6.1 verify",
        "agreement after a disagreement",
        "return sampled[: num_accepted + 1]",
        "return sampled[: sum(map(int.__eq__, draft_tokens, sampled)) + 1]",
    ),
    Wrong(
        "5.6.1 verify",
        "all or nothing",
        "return sampled[: num_accepted + 1]",
        "return sampled[:1]",
    ),
    Wrong("5.6.2 pays", "the load does not count", "num_running / (", "1 / (1 + 0 * "),
    Wrong(
        "5.6.2 pays", "more drafts under load", "return num_running /", "return 1 - num_running /"
    ),
    Wrong("5.6.2 update", "only the last prediction counts", "/ ESTIMATE_WINDOW", ""),
    Wrong(
        "5.6.2 update",
        "only acceptance counts",
        "(is_accepted - self._rates[length])",
        "is_accepted",
    ),
    Wrong(
        "5.6.2 update",
        "long matches count as the shortest",
        "min(match_length, MAX_MATCH_LENGTH)",
        "match_length % (MAX_MATCH_LENGTH + 1)",
    ),
    Wrong("5.6.3 follow", "the match does not grow", "matched + 1)", "matched)"),
    Wrong("5.6.3 follow", "a match survives another token", "(-1, 0)", "(expected + 1, matched)"),
    Wrong(
        "5.6.3 follow", "predictions are not counted", "rates.update(matched, is_accepted)", "pass"
    ),
    Wrong(
        "5.6.3 look-up",
        "the first occurrence",
        "positions[key & mask] = position + 1",
        "positions.setdefault(key & mask, position + 1)",
    ),
    Wrong(
        "5.6.3 look-up",
        "the last token instead of the next one",
        "= position + 1",
        "= position",
    ),
    Wrong("5.6.3 look-up", "a shorter match replaces a longer one", "expected < 0 and ", ""),
    Wrong(
        "5.6.3 look-up",
        "every n-gram is its own match",
        "if expected < 0",
        "positions[key & mask] = position + 1\n                if expected < 0",
    ),
    Wrong("5.6.4 draft", "each token's own probability", "probability *=", "probability ="),
    Wrong("5.6.4 draft", "the match does not grow", "match_length += 1", "pass"),
    Wrong("5.6.4 draft", "one draft token too many", "< max_tokens", "<= max_tokens"),
    Wrong(
        "5.6.4 draft",
        "the draft ends with the text",
        "drafts.append(text[position] if beyond < 0 else drafts[beyond])",
        "if beyond >= 0:\n                break\n            drafts.append(text[position])",
    ),
    Wrong("5.6.4 draft", "the same token again", "position += 1", "pass"),
]
