"""Mistakes of Week 4."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "4.1.1 time-runs",
        "what is lazy is not evaluated",
        "        mx.eval(run())\n        seconds",
        "        run()\n        seconds",
    ),
    Wrong("4.1.1 time-runs", "no run is warmed up", "for _ in range(warm_up):", "for _ in []:"),
    Wrong(
        "4.1.1 time-runs",
        "only one run is warmed up",
        "for _ in range(warm_up):",
        "for _ in range(min(warm_up, 1)):",
    ),
    Wrong(
        "4.1.2 compare", "always in the same order", "if number % 2 == 0 else reversed(names)", ""
    ),
    Wrong(
        "4.1.2 compare",
        "all runs of one kernel before the next",
        "    for number in range(rounds):\n"
        "        for name in names if number % 2 == 0 else reversed(names):\n",
        "    for name in names:\n        for _ in range(rounds):\n",
    ),
    Wrong("4.1.2 compare", "nothing is warmed up", "mx.eval(runs[name]())", "pass"),
    Wrong(
        "4.1.3 product", "scales without biases", "(I / group_size) * 2 * 2", "(I / group_size) * 2"
    ),
    Wrong("4.1.3 product", "the operations of one row", "2 * M * O * I", "2 * O * I"),
    Wrong(
        "4.1.3 attention",
        "keys are read once a query head",
        "KernelCost(2 * H * S",
        "KernelCost(2 * H_q * S",
    ),
    Wrong("4.1.3 least-seconds", "the faster of the two", "return max(", "return min("),
    Wrong("4.1.4 share", "the median's share", "times.minimum", "times.median"),
    Wrong(
        "4.1.4 slowest",
        "the one that takes longest",
        "roofline_fraction(measured[name], costs[name], limits)",
        "-measured[name].minimum",
    ),
    Wrong(
        "4.2.1 prepare",
        "sums go on from group to group",
        "sums[g] = 0;",
        "sums[g] = g ? sums[g - 1] : 0;",
    ),
    Wrong("4.2.1 prepare", "the first row for all", "m * job.I + i", "i"),
    Wrong(
        "4.2.1 dot", "the highest nibble first", "k * job.bits)", "(per_word - 1 - k) * job.bits)"
    ),
    Wrong("4.2.1 dot", "the first group's sum for all", "sums[g]", "sums[0]"),
    Wrong(
        "4.2.1 dot",
        "scales in the dtype of the activations",
        "job.scales, o * groups + g, job.scale_format",
        "job.scales, o * groups + g, job.format",
    ),
    Wrong(
        "4.2.2 prepare",
        "the order of the loops, not of the lanes",
        "laid[k * LANES + lane] = x;",
        "laid[lane * per_word + k] = x;",
    ),
    Wrong("4.2.2 prepare", "the first row for all", "m * job.I + i", "i"),
    Wrong("4.2.2 dot", "odd weights are left out", "even + odd", "even"),
    Wrong(
        "4.2.2 dot",
        "biases in the dtype of the activations",
        "job.biases, o * groups + g, job.scale_format",
        "job.biases, o * groups + g, job.format",
    ),
    Wrong(
        "4.2.2 dot",
        "a mask for 4 bits",
        "word >> (k * bits) & ((1 << bits) - 1)",
        "word >> (k * bits) & 15",
    ),
    Wrong(
        "4.2.2 dot",
        "biases once an output",
        "return sum(total) + biased;",
        "return sum(total) + biased / groups;",
    ),
    Wrong(
        "4.2.3 activations",
        "the group's sum of numbers that are divided already",
        "sum += value;",
        "sum += BITS == 4 ? value / float(1 << (i * 4)) : value;",
    ),
    Wrong(
        "4.2.3 activations",
        "activations are loaded one by one",
        "four = *(device const vec<T, 4>*)(a + v);",
        "four(a[v], a[v + 1], a[v + 2], a[v + 3]);",
    ),
    Wrong(
        "4.2.3 weights",
        "shifted to the right, as if no activation were divided",
        "packed[i / 4] & (15u << (i % 4 * 4))",
        "packed[i / 4] >> (i % 4 * 4) & 15u",
    ),
    Wrong(
        "4.2.3 outputs",
        "the sum of one lane for that of all",
        "simd_sum(total[o][r])",
        "total[o][r]",
    ),
    Wrong(
        "4.2.3 outputs",
        "the weights of the first output for all four",
        "load_weights<BITS>(weights + output[o] * row_bytes, q);",
        "load_weights<BITS>(weights, q);",
    ),
    Wrong("4.3.1 prepack", "rows stay rows", ".swapaxes(1, 2)", ""),
    Wrong(
        "4.3.1 prepack",
        "rows that lie far apart go together",
        ".reshape(O // rows, rows, W).swapaxes(1, 2)",
        ".reshape(rows, O // rows, W).transpose(1, 2, 0)",
    ),
    Wrong("4.3.2 widen", "the first row for all", "m * job.I + i", "i"),
    Wrong(
        "4.3.2 block",
        "the first vector's words for all outputs",
        "load_bits<Ints>(words + v * LANES)",
        "load_bits<Ints>(words)",
    ),
    Wrong(
        "4.3.2 block",
        "scales in the dtype of the activations",
        "job.scales, place, job.scale_format",
        "job.scales, place, job.format",
    ),
    Wrong(
        "4.3.2 block",
        "the first vector's scales for all outputs",
        "g * PACK_ROWS + v * LANES;",
        "g * PACK_ROWS;",
    ),
    Wrong(
        "4.3.2 block",
        "a group's scale and bias are added together",
        "            totals[v] = fma(load(job.scales, place, job.scale_format), products[v], "
        "totals[v]);\n"
        "            totals[v] = fma(load(job.biases, place, job.scale_format), group_sum, "
        "totals[v]);",
        "            totals[v] += load(job.scales, place, job.scale_format) * products[v] +\n"
        "                         load(job.biases, place, job.scale_format) * group_sum;",
    ),
    Wrong("4.3.3 in-flight", "a rate per second", "latency * bytes_per_s", "bytes_per_s / latency"),
    Wrong("4.3.3 nearest", "noise decides", "best * (1 + tolerance)", "best"),
    Wrong("4.3.3 nearest", "medians beside a minimum", "if times.minimum", "if times.median"),
    Wrong(
        "4.4.1 unpack",
        "a panel's inputs a vector apart, not PACK_ROWS",
        "(i + k) * PACK_ROWS",
        "(i + k) * LANES",
    ),
    Wrong(
        "4.4.1 products",
        "the first row's activations for the whole tile",
        "a[row * job.I + i]",
        "a[i]",
    ),
    Wrong(
        "4.4.2 unpack",
        "the first of a pair in the upper half",
        "lower | upper",
        "as_ints(__builtin_convertvector(second, Floats)) >> 16 |\n"
        "                                  as_ints(__builtin_convertvector(first, Floats))",
    ),
    Wrong(
        "4.4.2 products",
        "the first row's activations for the whole tile",
        "a + row * job.I + i",
        "a + i",
    ),
    Wrong(
        "4.5.1 claim",
        "read, and written afterwards",
        "if (ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {",
        "if (ticket.store(seen + 1); true) {",
    ),
    Wrong("4.5.1 claim", "a ticket of any job is good", "seen >> 32 == job && ", ""),
    Wrong("4.5.1 next", "all threads begin with the first run", "(thread + i) %", "i %"),
    Wrong("4.5.1 next", "no thread helps another", "i < job.threads", "i < 1"),
    Wrong(
        "4.5.2 factor",
        "the last numbers of a row are left out",
        "D - i); rest > 0)",
        "D - i); rest > LANES)",
    ),
    Wrong(
        "4.5.2 add",
        "every row adds the first row of y",
        "load(y, y_start + i, F))",
        "load(y, i, F))",
    ),
    Wrong("4.5.3 pairs", "neighbours are a pair", "normalized(i + half)", "normalized(i + 1)"),
    Wrong(
        "4.5.3 head", "pairs that do not fill a vector stay as they are", "i < half)", "i > half)"
    ),
    Wrong(
        "4.5.4 silu",
        "the exponential of |x| overflows",
        "as_floats(as_ints(x) | sign)",
        "as_floats(as_ints(x) & ~sign)",
    ),
    Wrong(
        "4.5.4 silu",
        "cancels far below zero",
        "(x < 0.0f ? z : splat(1.0f)) / round_1_to_2<F>(1.0f + z)",
        "x < 0.0f ? 1.0f - 1.0f / (1.0f + z) : 1.0f / (1.0f + z)",
    ),
    Wrong(
        "4.5.4 row",
        "the last numbers of a row are left out",
        "job.I - i); rest > 0)",
        "job.I - i); rest > LANES)",
    ),
    Wrong(
        "4.6.1 scores",
        "the first key of eight for all",
        "load(keys, place[k] + d, format)",
        "load(keys, place[0] + d, format)",
    ),
    Wrong(
        "4.6.1 scores",
        "numbers beyond the last whole vector are left out",
        "if (whole < D) {",
        "if (whole < 0) {",
    ),
    Wrong(
        "4.6.2 exp",
        "rounded down, so that f reaches 1",
        "const Floats shifted = clamped + magic;",
        "const Floats shifted = clamped - 0.5f + magic;",
    ),
    Wrong(
        "4.6.2 softmax",
        "the sum keeps its old unit",
        "state.sum *= factor;",
        "",
    ),
    Wrong(
        "4.6.2 values",
        "the first columns' values for all",
        "tile.values[s] + d + v * LANES",
        "tile.values[s] + d",
    ),
    Wrong(
        "4.6.3 merge",
        "parts are added in different units",
        "equal ? 1 : std::exp2(part.largest - all.largest)",
        "part.sum > 0 || equal",
    ),
    Wrong(
        "4.6.3 split",
        "as many parts as threads",
        "size = KEYS_PER_SPLIT;",
        "size = (keys_of(blocks[0]) + num_threads() - 1) / num_threads();",
    ),
    Wrong(
        "4.7.1 node",
        "the whole time of the longest graph, divided",
        "return covariance / sum((n - mean_nodes) ** 2 for n in measured)",
        "return measured[max(measured)].minimum / max(measured)",
    ),
    Wrong(
        "4.7.1 node",
        "medians instead of minima",
        "(measured[n].minimum - mean_seconds)",
        "(measured[n].median - mean_seconds)",
    ),
    Wrong("4.7.1 share", "as if no node were left", "(nodes - captured_nodes)", "nodes"),
    Wrong("4.7.2 depends", "what has a constant input is one", "std::any_of(", "std::all_of("),
    Wrong(
        "4.7.2 last-uses",
        "outputs are not needed at the end",
        "for (const int index : aliases_of(output))",
        "for (const int index : std::vector<int>())",
    ),
    Wrong(
        "4.7.2 last-uses",
        "a view is thought to have memory of its own",
        "for (const int index : aliases_of(place)) {",
        "if (const int index = place.is_constant ? -1 : place.index; index >= 0) {",
    ),
    Wrong(
        "4.7.3 replayed",
        "recorded again for every call",
        "outputs is None and self._should_capture_now",
        "self._should_capture_now",
    ),
    Wrong(
        "4.7.3 replayed",
        "always when a shape is first seen",
        "self._should_capture_now(inputs) and ",
        "",
    ),
    Wrong(
        "4.7.3 capture",
        "what cannot be recorded is an error",
        "except ValueError:",
        "except KeyError:",
    ),
    Wrong(
        "4.7.3 lies",
        "a buffer may be anywhere",
        "inputs[i].data<char>() != inputs_[i].data",
        "inputs[i].size() != inputs_[i].size",
    ),
    Wrong(
        "4.7.4",
        "sequences and tokens exchanged",
        "self._plan(cache, B, L)",
        "self._plan(cache, L, B)",
    ),
    Wrong("4.7.4", "prompts instead of steps", "not is_decode_step(x)", "is_decode_step(x)"),
    Wrong(
        "4.7.4",
        "a plan is asked of a model that has none",
        "if self._plan is None or not",
        "if not",
    ),
]
