"""Mistakes of the optional days."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong("5.1.1 choose", "the least likely experts", "mx.argsort(-scores", "mx.argsort(scores"),
    Wrong("5.1.1 choose", "shares always add up to 1", "if normalized:", "if True:"),
    Wrong(
        "5.1.1 choose",
        "a softmax over the chosen experts alone",
        "mx.take_along_axis(mx.softmax(scores, axis=-1, precise=True), experts, axis=-1)",
        "mx.softmax(mx.take_along_axis(scores, experts, axis=-1), axis=-1, precise=True)",
    ),
    Wrong("5.1.1 choose", "in the dtype of the logits", "logits.astype(mx.float32)", "logits"),
    Wrong("5.1.2 sort", "the way there as the way back", "mx.argsort(order)", "order"),
    Wrong("5.1.2 sort", "the last expert first", "mx.argsort(experts)", "mx.argsort(-experts)"),
    Wrong("5.1.2 runs", "the run's number as the expert's", "(expert, first", "(len(runs), first"),
    Wrong("5.1.2 runs", "a run ends at its last product", "first, end))", "first, end - 1))"),
    Wrong("5.1.3 separate", "the products stay sorted", "[places]", ""),
    Wrong("5.1.3 separate", "the rank of the choice as the token", "[order // K]", "[order % K]"),
    Wrong(
        "5.1.3 separate",
        "all products through every chosen expert",
        "self.experts[expert](rows[first:end])",
        "self.experts[expert](rows)[first:end]",
    ),
    Wrong("5.1.4 add-up", "a sum without shares", " * shares[..., None]", ""),
    Wrong(
        "5.1.4 add-up",
        "shares rounded to the outputs' dtype",
        "shares[..., None]",
        "shares[..., None].astype(outputs.dtype)",
    ),
    Wrong(
        "5.1.4 add-up",
        "added up in the outputs' dtype",
        "mx.sum(parts,",
        "mx.sum(parts.astype(outputs.dtype),",
    ),
    Wrong("5.1.4 add-up", "a mean", "mx.sum(parts", "mx.mean(parts"),
    Wrong(
        "5.2.1 tokens",
        "as many tokens on the last rank as on the others",
        "min(first + self.tokens_per_rank, self.whole.vocab_size)",
        "first + self.tokens_per_rank",
    ),
    Wrong("5.2.1 heads", "heads dealt out in turn", "self.rank * H // self.size", "self.rank % H"),
    Wrong("5.2.1 heads", "no head for a rank of many", "max(1, H // self.size)", "H // self.size"),
    Wrong(
        "5.2.2 split",
        "keys and values in as many pieces as there are ranks",
        "rows, self.whole.num_key_value_heads, self.key_value_heads",
        "rows, self.size, own",
    ),
    Wrong(
        "5.2.2 split", "columns by row", "return -1, self.size, own", "return -2, self.size, own"
    ),
    Wrong(
        "5.2.2 split",
        "the biases of a quantized matrix as a bias",
        'kind == "bias"',
        '"bias" in kind',
    ),
    Wrong("5.2.2 bias", "every rank adds the bias of a sum", "self.rank > 0 and", "False and"),
    Wrong("5.2.3 sum", "a ring's sum of any number of ranks", "group.size() <= 2", "True"),
    Wrong(
        "5.2.3 sum",
        "a sum that is rounded at each rank",
        "total + parts[rank]",
        "(total + parts[rank]).astype(x.dtype)",
    ),
    Wrong(
        "5.2.3 sum",
        "one message of any size",
        "_in_pieces(x, lambda piece: mx.distributed.all_sum(piece, group=group))",
        "mx.distributed.all_sum(x, group=group)",
    ),
    Wrong(
        "5.2.3 two-sums",
        "attention's part is not summed",
        "feed(x, sum_over_ranks(part, self._group))",
        "feed(x, part)",
    ),
    Wrong(
        "5.2.3 two-sums",
        "the MLP's part is not summed",
        "return x, sum_over_ranks(part, self._group)",
        "return x, part",
    ),
    Wrong("5.2.4 table", "rows of tokens that are not here", "is_own[..., None]", "True"),
    Wrong("5.2.4 table", "ids of the whole vocabulary", "- self._tokens.start", ""),
    Wrong("5.2.4 head", "ranks before rows", "parts.swapaxes(0, 1)", "parts"),
    Wrong("5.2.4 head", "padding in the logits", "[:, : self._vocab_size]", ""),
]
