"""Wrong solutions for Week 5, days 3 and 6: load tests, n-gram drafts."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("5.3.1 arrivals", "the mean gap is the rate, not its inverse", "1 / rate", "rate"),
    Wrong("5.3.1 arrivals", "returns gaps instead of arrival times", "np.cumsum(gaps)", "gaps"),
    Wrong(
        "5.3.1 arrivals",
        "gaps are constant",
        "rng.exponential(1 / rate, num_requests - 1)",
        "np.full(num_requests - 1, 1 / rate)",
    ),
    Wrong(
        "5.3.1 arrivals",
        "gaps are uniformly distributed",
        "rng.exponential(1 / rate, num_requests - 1)",
        "rng.uniform(0, 2 / rate, num_requests - 1)",
    ),
    Wrong("5.3.1 arrivals", "one gap too many", "num_requests - 1", "num_requests"),
    Wrong("5.3.2 record", "counts events instead of tokens", "+= num_tokens", "+= 1"),
    Wrong(
        "5.3.2 record", "first_token is overwritten by later tokens", "self.num_tokens == 0", "True"
    ),
    Wrong(
        "5.3.2 tpot",
        "divides by the number of tokens, not of gaps",
        "(self.num_tokens - 1)",
        "self.num_tokens",
    ),
    Wrong(
        "5.3.2 tpot", "TPOT is measured from the arrival", "- self.first_token", "- self.arrival"
    ),
    Wrong("5.3.2 tpot", "a single token has a TPOT of 0", "return None", "return 0.0"),
    Wrong(
        "5.3.3 loop",
        "latency is measured from sending, not from arrival",
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
        "requests are sent only to an idle engine",
        "while pending and started",
        "while pending and not llm.has_unfinished_requests and started",
    ),
    Wrong(
        "5.3.3 loop",
        "stops at the last arrival",
        "while pending or llm.has_unfinished_requests",
        "while pending",
    ),
    Wrong(
        "5.3.3 loop",
        "sleeps for a negative time",
        "max(0.0, started + pending[0][2] - clock())",
        "started + pending[0][2] - clock()",
    ),
    Wrong(
        "5.3.4 percentile", "the rank is one too high", "[rank - 1]", "[min(rank, len(values) - 1)]"
    ),
    Wrong(
        "5.3.4 percentile",
        "the rank is rounded down",
        "math.ceil(len(values) * percent / 100)",
        "max(1, int(len(values) * percent / 100))",
    ),
    Wrong("5.3.4 percentile", "values are not sorted", "sorted(values)", "values"),
    Wrong(
        "5.3.4 is-met",
        "only the TTFT bound is checked",
        "(request.tpot is None or request.tpot <= self.tpot)",
        "True",
    ),
    Wrong("5.3.4 is-met", "either bound suffices", "self.ttft and", "self.ttft or"),
    Wrong("5.3.4 goodput", "returns a fraction instead of a rate", "/ seconds", "/ len(requests)"),
    Wrong(
        "5.3.4 goodput", "counts every request", "sum(map(slo.is_met, requests))", "len(requests)"
    ),
    Wrong(
        "5.3.4 goodput",
        "the duration ends at the last arrival",
        "max(one.last_token for one in requests)",
        "max(one.arrival for one in requests)",
    ),
    Wrong("5.6.1 verify", "the target's own token is dropped", "num_accepted + 1", "num_accepted"),
    Wrong(
        "5.6.1 verify",
        "matches after a mismatch are accepted",
        "return sampled[: num_accepted + 1]",
        "return sampled[: sum(map(int.__eq__, draft_tokens, sampled)) + 1]",
    ),
    Wrong(
        "5.6.1 verify",
        "never accepts draft tokens",
        "return sampled[: num_accepted + 1]",
        "return sampled[:1]",
    ),
    Wrong("5.6.2 pays", "the load is ignored", "num_running / (", "1 / (1 + 0 * "),
    Wrong(
        "5.6.2 pays",
        "drafts more under load, not less",
        "return num_running /",
        "return 1 - num_running /",
    ),
    Wrong("5.6.2 update", "only the last prediction counts", "/ ESTIMATE_WINDOW", ""),
    Wrong(
        "5.6.2 update",
        "rejections do not lower the rate",
        "(is_accepted - self._rates[length])",
        "is_accepted",
    ),
    Wrong(
        "5.6.2 update",
        "long matches are counted as short ones",
        "min(match_length, MAX_MATCH_LENGTH)",
        "match_length % (MAX_MATCH_LENGTH + 1)",
    ),
    Wrong("5.6.3 follow", "the match does not grow", "matched + 1)", "matched)"),
    Wrong(
        "5.6.3 follow", "a match survives a mismatched token", "(-1, 0)", "(expected + 1, matched)"
    ),
    Wrong(
        "5.6.3 follow", "predictions are not counted", "rates.update(matched, is_accepted)", "pass"
    ),
    Wrong(
        "5.6.3 look-up",
        "finds the first occurrence, not the latest",
        "positions[key & mask] = position + 1",
        "positions.setdefault(key & mask, position + 1)",
    ),
    Wrong(
        "5.6.3 look-up",
        "points to the n-gram's last token, not the next one",
        "= position + 1",
        "= position",
    ),
    Wrong("5.6.3 look-up", "a shorter match replaces a longer one", "expected < 0 and ", ""),
    Wrong(
        "5.6.3 look-up",
        "an n-gram can match itself",
        "if expected < 0",
        "positions[key & mask] = position + 1\n                if expected < 0",
    ),
    Wrong("5.6.4 draft", "probabilities are not multiplied", "probability *=", "probability ="),
    Wrong("5.6.4 draft", "the match does not grow", "match_length += 1", "pass"),
    Wrong("5.6.4 draft", "one draft token too many", "< max_tokens", "<= max_tokens"),
    Wrong(
        "5.6.4 draft",
        "the draft stops at the end of the text",
        "drafts.append(text[position] if beyond < 0 else drafts[beyond])",
        "if beyond >= 0:\n                break\n            drafts.append(text[position])",
    ),
    Wrong("5.6.4 draft", "drafts the same token repeatedly", "position += 1", "pass"),
]
