"""Wrong solutions for Week 4."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "4.1.1 time-runs",
        "lazy results are not evaluated",
        "        mx.eval(run())\n        seconds",
        "        run()\n        seconds",
    ),
    Wrong("4.1.1 time-runs", "no warm-up runs", "for _ in range(warm_up):", "for _ in []:"),
    Wrong(
        "4.1.1 time-runs",
        "only one warm-up run",
        "for _ in range(warm_up):",
        "for _ in range(min(warm_up, 1)):",
    ),
    Wrong(
        "4.1.2 compare",
        "kernels always run in the same order",
        "if number % 2 == 0 else reversed(names)",
        "",
    ),
    Wrong(
        "4.1.2 compare",
        "runs of different kernels are not interleaved",
        "    for number in range(rounds):\n"
        "        for name in names if number % 2 == 0 else reversed(names):\n",
        "    for name in names:\n        for _ in range(rounds):\n",
    ),
    Wrong("4.1.2 compare", "no warm-up", "mx.eval(runs[name]())", "pass"),
    Wrong(
        "4.1.3 product",
        "counts the bytes of scales but not of biases",
        "(I / group_size) * 2 * 2",
        "(I / group_size) * 2",
    ),
    Wrong("4.1.3 product", "counts the FLOPs of one row", "2 * M * O * I", "2 * O * I"),
    Wrong(
        "4.1.3 attention",
        "counts keys once per query head",
        "KernelCost(2 * H * S",
        "KernelCost(2 * H_q * S",
    ),
    Wrong(
        "4.1.3 least-seconds", "takes the minimum of the two bounds", "return max(", "return min("
    ),
    Wrong("4.1.4 share", "uses the median instead of the minimum", "times.minimum", "times.median"),
    Wrong(
        "4.1.4 slowest",
        "picks the longest time, not the lowest share",
        "roofline_fraction(measured[name], costs[name], limits)",
        "-measured[name].minimum",
    ),
    Wrong(
        "4.2.1 prepare",
        "sums carry over from group to group",
        "sums[g] = 0;",
        "sums[g] = g ? sums[g - 1] : 0;",
    ),
    Wrong("4.2.1 prepare", "the first row is used for all rows", "m * job.I + i", "i"),
    Wrong(
        "4.2.1 dot",
        "nibbles are unpacked in reverse order",
        "k * job.bits)",
        "(per_word - 1 - k) * job.bits)",
    ),
    Wrong("4.2.1 dot", "the first group's sum is used for all groups", "sums[g]", "sums[0]"),
    Wrong(
        "4.2.1 dot",
        "scales are read in the activations' dtype",
        "job.scales, o * groups + g, job.scale_format",
        "job.scales, o * groups + g, job.format",
    ),
    Wrong(
        "4.2.2 prepare",
        "activations are laid out in loop order, not lane order",
        "permuted[k * LANES + lane] = x;",
        "permuted[lane * per_word + k] = x;",
    ),
    Wrong("4.2.2 prepare", "the first row is used for all rows", "m * job.I + i", "i"),
    Wrong("4.2.2 dot", "every second weight is skipped", "even + odd", "even"),
    Wrong(
        "4.2.2 dot",
        "biases are read in the activations' dtype",
        "job.biases, o * groups + g, job.scale_format",
        "job.biases, o * groups + g, job.format",
    ),
    Wrong(
        "4.2.2 dot",
        "the bit mask is always 4 bits wide",
        "word >> (k * bits) & ((1 << bits) - 1)",
        "word >> (k * bits) & 15",
    ),
    Wrong(
        "4.2.2 dot",
        "the bias is divided by the number of groups",
        "return sum(total) + biased;",
        "return sum(total) + biased / groups;",
    ),
    Wrong(
        "4.2.3 activations",
        "the group sum adds already divided activations",
        "sum += value;",
        "sum += BITS == 4 ? value / float(1 << (i * 4)) : value;",
    ),
    Wrong(
        "4.2.3 activations",
        "activations are loaded one at a time",
        "four = *(device const vec<T, 4>*)(a + v);",
        "four(a[v], a[v + 1], a[v + 2], a[v + 3]);",
    ),
    Wrong(
        "4.2.3 weights",
        "weights are shifted although activations are divided",
        "packed[i / 4] & (15u << (i % 4 * 4))",
        "packed[i / 4] >> (i % 4 * 4) & 15u",
    ),
    Wrong(
        "4.2.3 outputs",
        "the sum covers one lane, not the SIMD group",
        "simd_sum(total[o][r])",
        "total[o][r]",
    ),
    Wrong(
        "4.2.3 outputs",
        "the first output's weights are used for all four",
        "load_weights<BITS>(weights + output[o] * row_bytes, q);",
        "load_weights<BITS>(weights, q);",
    ),
    Wrong("4.3.1 prepack", "the packed layout is not transposed", ".swapaxes(1, 2)", ""),
    Wrong(
        "4.3.1 prepack",
        "panels hold strided rows, not adjacent ones",
        ".reshape(O // rows, rows, W).swapaxes(1, 2)",
        ".reshape(rows, O // rows, W).transpose(1, 2, 0)",
    ),
    Wrong("4.3.2 widen", "the first row is used for all rows", "m * job.I + i", "i"),
    Wrong(
        "4.3.2 block",
        "the first vector's words are used for all outputs",
        "load_bits<Ints>(words + v * LANES)",
        "load_bits<Ints>(words)",
    ),
    Wrong(
        "4.3.2 block",
        "scales are read in the activations' dtype",
        "job.scales, offset, job.scale_format",
        "job.scales, offset, job.format",
    ),
    Wrong(
        "4.3.2 block",
        "the first vector's scales are used for all outputs",
        "g * PACK_ROWS + v * LANES;",
        "g * PACK_ROWS;",
    ),
    Wrong(
        "4.3.2 block",
        "a group's scale and bias are added together",
        "            totals[v] = fma(load(job.scales, offset, job.scale_format), products[v], "
        "totals[v]);\n"
        "            totals[v] = fma(load(job.biases, offset, job.scale_format), group_sum, "
        "totals[v]);",
        "            totals[v] += load(job.scales, offset, job.scale_format) * products[v] +\n"
        "                         load(job.biases, offset, job.scale_format) * group_sum;",
    ),
    Wrong(
        "4.3.3 in-flight",
        "divides bandwidth by latency instead of multiplying",
        "latency * bytes_per_s",
        "bytes_per_s / latency",
    ),
    Wrong("4.3.3 nearest", "no tolerance for measurement noise", "best * (1 + tolerance)", "best"),
    Wrong(
        "4.3.3 nearest", "compares medians with a minimum", "if times.minimum", "if times.median"
    ),
    Wrong(
        "4.4.1 unpack",
        "a panel's stride is LANES, not PACK_ROWS",
        "(i + k) * PACK_ROWS",
        "(i + k) * LANES",
    ),
    Wrong(
        "4.4.1 products",
        "the first row's activations are used for the whole tile",
        "a[row * job.I + i]",
        "a[i]",
    ),
    Wrong(
        "4.4.2 unpack",
        "the halves of a pair are swapped",
        "lower | upper",
        "as_ints(__builtin_convertvector(second, Floats)) >> 16 |\n"
        "                                  as_ints(__builtin_convertvector(first, Floats))",
    ),
    Wrong(
        "4.4.2 products",
        "the first row's activations are used for the whole tile",
        "a + row * job.I + i",
        "a + i",
    ),
    Wrong(
        "4.5.1 claim",
        "the ticket is read and written non-atomically",
        "if (ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {",
        "if (ticket.store(seen + 1); true) {",
    ),
    Wrong("4.5.1 claim", "the ticket's job is not checked", "seen >> 32 == job && ", ""),
    Wrong("4.5.1 next", "all threads start with the first run", "(thread + i) %", "i %"),
    Wrong("4.5.1 next", "threads do not steal work", "i < job.threads", "i < 1"),
    Wrong(
        "4.5.2 factor",
        "the row's partial vector is skipped",
        "D - i); rest > 0)",
        "D - i); rest > LANES)",
    ),
    Wrong(
        "4.5.2 add",
        "the first vector of y is added to all vectors",
        "load(y, i, F))",
        "load(y, 0, F))",
    ),
    Wrong(
        "4.5.2 norm",
        "a float32 weight is read in the format of x",
        "load(weight, i, W))",
        "load(weight, i, F))",
    ),
    Wrong(
        "4.5.3 norm",
        "a float32 weight is read in the format of x",
        "load_up_to(weight, i, W, count)",
        "load_up_to(weight, i, F, count)",
    ),
    Wrong("4.5.3 pairs", "pairs are adjacent elements", "factor, i + pairs", "factor, i + 1"),
    Wrong("4.5.3 head", "the remaining pairs are not rotated", "i < pairs)", "i > pairs)"),
    Wrong(
        "4.5.4 silu",
        "exp(|x|) overflows",
        "as_floats(as_ints(x) | sign)",
        "as_floats(as_ints(x) & ~sign)",
    ),
    Wrong(
        "4.5.4 silu",
        "catastrophic cancellation for very negative x",
        "(x < 0.0f ? z : splat(1.0f)) / round_1_to_2<F>(1.0f + z)",
        "x < 0.0f ? 1.0f - 1.0f / (1.0f + z) : 1.0f / (1.0f + z)",
    ),
    Wrong(
        "4.5.4 row",
        "the row's partial vector is skipped",
        "I - i); rest > 0)",
        "I - i); rest > LANES)",
    ),
    Wrong(
        "4.6.1 scores",
        "the first of eight keys is used for all",
        "load(keys, offset[k] + d, format)",
        "load(keys, offset[0] + d, format)",
    ),
    Wrong(
        "4.6.1 scores",
        "the head's partial vector is skipped",
        "if (whole < D) {",
        "if (whole < 0) {",
    ),
    Wrong(
        "4.6.2 exp",
        "the exponent is rounded down, so the fraction reaches 1",
        "const Floats shifted = clamped + magic;",
        "const Floats shifted = clamped - 0.5f + magic;",
    ),
    Wrong(
        "4.6.2 softmax",
        "the running sum is not rescaled",
        "state.sum *= factor;",
        "",
    ),
    Wrong(
        "4.6.2 values",
        "the first columns' values are used for all",
        "tile.values[s] + d + v * LANES",
        "tile.values[s] + d",
    ),
    Wrong(
        "4.6.3 merge",
        "parts are merged without rescaling",
        "equal ? 1 : std::exp2(part.largest - all.largest)",
        "part.sum > 0 || equal",
    ),
    Wrong(
        "4.6.3 split",
        "the split size depends on the number of threads",
        "size = KEYS_PER_SPLIT;",
        "size = (keys_of(blocks[0]) + num_threads() - 1) / num_threads();",
    ),
    Wrong(
        "4.7.1 node",
        "divides the longest graph's time, overhead included, by its nodes",
        "return covariance / sum((n - mean_nodes) ** 2 for n in measured)",
        "return measured[max(measured)].minimum / max(measured)",
    ),
    Wrong(
        "4.7.1 node",
        "mixes medians with minima",
        "(measured[n].minimum - mean_seconds)",
        "(measured[n].median - mean_seconds)",
    ),
    Wrong(
        "4.7.1 share",
        "ignores the nodes that remain after capture",
        "(nodes - captured_nodes)",
        "nodes",
    ),
    Wrong(
        "4.7.2 depends", "any constant input makes a node constant", "std::any_of(", "std::all_of("
    ),
    Wrong(
        "4.7.2 last-uses",
        "outputs are not kept alive until the end",
        "for (const int index : aliases_of(output))",
        "for (const int index : std::vector<int>())",
    ),
    Wrong(
        "4.7.2 last-uses",
        "a view does not keep its buffer alive",
        "for (const int index : aliases_of(array)) {",
        "if (const int index = array.is_constant ? -1 : array.index; index >= 0) {",
    ),
    Wrong(
        "4.7.3 replayed",
        "every call captures again",
        "outputs is None and self._should_capture_now",
        "self._should_capture_now",
    ),
    Wrong(
        "4.7.3 replayed",
        "captures every new shape",
        "self._should_capture_now(inputs) and ",
        "",
    ),
    Wrong(
        "4.7.3 capture",
        "an uncapturable graph is an error",
        "except ValueError:",
        "except KeyError:",
    ),
    Wrong(
        "4.7.3 fits",
        "input addresses are not checked",
        "inputs[i].data<char>() != inputs_[i].data",
        "inputs[i].size() != inputs_[i].size",
    ),
    Wrong(
        "4.7.4",
        "batch size and sequence length are swapped",
        "self._plan(cache, B, L)",
        "self._plan(cache, L, B)",
    ),
    Wrong(
        "4.7.4",
        "prefill is captured instead of decoding",
        "not is_decode_step(x)",
        "is_decode_step(x)",
    ),
    Wrong(
        "4.7.4",
        "attention without a planner is not handled",
        "if self._plan is None or not",
        "if not",
    ),
]
