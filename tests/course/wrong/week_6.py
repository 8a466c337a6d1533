"""Wrong solutions for Week 6, days 1 and 2: experts, tensor parallelism."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "6.1.1 choose",
        "chooses the least likely experts",
        "mx.argsort(-scores",
        "mx.argsort(scores",
    ),
    Wrong("6.1.1 choose", "weights are always normalized", "if normalized:", "if True:"),
    Wrong(
        "6.1.1 choose",
        "softmax over the chosen experts only",
        "mx.take_along_axis(\n"
        "        mx.softmax(scores, axis=-1, precise=True), experts, axis=-1\n"
        "    )",
        "mx.softmax(mx.take_along_axis(scores, experts, axis=-1), axis=-1, precise=True)",
    ),
    Wrong(
        "6.1.1 choose",
        "probabilities are computed in the logits' dtype",
        "logits.astype(mx.float32)",
        "logits",
    ),
    Wrong("6.1.2 sort", "returns the order instead of its inverse", "mx.argsort(order)", "order"),
    Wrong(
        "6.1.2 sort",
        "sorts experts in descending order",
        "mx.argsort(experts)",
        "mx.argsort(-experts)",
    ),
    Wrong(
        "6.1.2 runs",
        "returns the run's index instead of the expert's",
        "(expert, first",
        "(len(runs), first",
    ),
    Wrong("6.1.2 runs", "the end of a run is one too low", "first, end))", "first, end - 1))"),
    Wrong("6.1.3 separate", "outputs stay in sorted order", "[inverse]", ""),
    Wrong(
        "6.1.3 separate",
        "a choice's index is used as the token's index",
        "[order // K]",
        "[order % K]",
    ),
    Wrong(
        "6.1.3 separate",
        "every expert processes all rows",
        "self.experts[expert](rows[first:end])",
        "self.experts[expert](rows)[first:end]",
    ),
    Wrong("6.1.4 add-up", "routing weights are ignored", " * routing_weights[..., None]", ""),
    Wrong(
        "6.1.4 add-up",
        "weights are rounded to the outputs' dtype",
        "routing_weights[..., None]",
        "routing_weights[..., None].astype(outputs.dtype)",
    ),
    Wrong(
        "6.1.4 add-up",
        "accumulates in the outputs' dtype",
        "mx.sum(parts,",
        "mx.sum(parts.astype(outputs.dtype),",
    ),
    Wrong("6.1.4 add-up", "averages instead of summing", "mx.sum(parts", "mx.mean(parts"),
    Wrong(
        "6.2.1 tokens",
        "the last rank's share is not clipped",
        "min(first + self.vocab_per_rank, self.full_config.vocab_size)",
        "first + self.vocab_per_rank",
    ),
    Wrong(
        "6.2.1 heads",
        "heads are assigned round-robin",
        "self.rank * H // self.size",
        "self.rank % H",
    ),
    Wrong("6.2.1 heads", "a rank can have no key head", "max(1, H // self.size)", "H // self.size"),
    Wrong(
        "6.2.2 split",
        "keys and values are split by rank, not by head",
        "rows, self.full_config.num_key_value_heads, self.kv_head_range",
        "rows, self.size, own",
    ),
    Wrong(
        "6.2.2 split",
        "matrices to be split by columns are split by rows",
        "return -1, self.size, own",
        "return -2, self.size, own",
    ),
    Wrong(
        "6.2.2 split",
        "quantization biases are treated as a bias",
        'kind == "bias"',
        '"bias" in kind',
    ),
    Wrong(
        "6.2.2 bias",
        "every rank adds the bias before the all-reduce",
        "self.rank > 0 and",
        "False and",
    ),
    Wrong(
        "6.2.3 sum",
        "the ring's all_sum is used for any number of ranks",
        "parts = all_gather(x, group)",
        "return mx.distributed.all_sum(x, group=group)",
    ),
    Wrong(
        "6.2.3 sum",
        "the sum is rounded after each rank",
        "total + parts[rank]",
        "(total + parts[rank]).astype(x.dtype)",
    ),
    Wrong(
        "6.2.3 sum",
        "large messages are not split",
        "all_gather(x, group)",
        "mx.distributed.all_gather(x[None], group=group)",
    ),
    Wrong(
        "6.2.3 two-sums",
        "the attention output is not all-reduced",
        "feed_forward(x, all_reduce(partial_sum, self._group))",
        "feed_forward(x, partial_sum)",
    ),
    Wrong(
        "6.2.3 two-sums",
        "the MLP output is not all-reduced",
        "return x, all_reduce(partial_sum, self._group)",
        "return x, partial_sum",
    ),
    Wrong("6.2.4 table", "rows of other ranks' tokens are not zeroed", "is_own[..., None]", "True"),
    Wrong("6.2.4 table", "ids are not shifted to the rank's range", "- self._tokens.start", ""),
    Wrong("6.2.4 head", "the gathered logits are not transposed", "parts.swapaxes(0, 1)", "parts"),
    Wrong("6.2.4 head", "the logits include padding", "[:, : self._vocab_size]", ""),
]
