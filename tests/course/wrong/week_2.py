"""Mistakes of Week 2."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "2.1.1 append",
        "the new tokens overwrite the first ones",
        "cache_write(self._keys, key, [self.offset] * B)",
        "cache_write(self._keys, key, [0] * B)",
    ),
    Wrong(
        "2.1.1 append",
        "the offset counts calls, not tokens",
        "self.offset = end",
        "self.offset += 1",
    ),
    Wrong(
        "2.1.1 append",
        "values are keys",
        "cache_write(self._values, value,",
        "cache_write(self._values, key,",
    ),
    Wrong(
        "2.1.1 room",
        "room for one token at a time",
        "growth = -(-growth // GROWTH_TOKENS) * GROWTH_TOKENS",
        "growth = tokens - capacity",
    ),
    Wrong(
        "2.1.1 room",
        "new room before the old tokens",
        "mx.concatenate([buffer, room], axis=2)",
        "mx.concatenate([room, buffer], axis=2)",
    ),
    Wrong("2.1.1 rewind", "forgets all but n", "self.offset -= n", "self.offset = n"),
    Wrong(
        "2.1.1 fetch",
        "the unused room too",
        "return keys[:, :, :S], values[:, :, :S]",
        "return keys, values",
    ),
    Wrong(
        "2.1.1 release", "the tokens stay", "self._keys = None\n        self._values = None", "pass"
    ),
    Wrong(
        "2.1.2 attention",
        "keys without RoPE and norm",
        "key = kernels.qk_norm_rope(key, self.k_norm, self.eps, *rotation)",
        "key = key.swapaxes(1, 2)",
    ),
    Wrong(
        "2.1.2 attention",
        "heads are not swapped back",
        "attended.swapaxes(1, 2).reshape",
        "attended.reshape",
    ),
    Wrong("2.1.2 grouped", "no mask", "mask=mask", "mask=None"),
    Wrong(
        "2.1.2 grouped",
        "attends to the new tokens alone",
        "keys.astype(mx.float32),\n            values.astype(mx.float32)",
        "key.astype(mx.float32),\n            value.astype(mx.float32)",
    ),
    Wrong(
        "2.1.3 layers",
        "positions begin at zero in every call",
        "_positions(inputs, offset)",
        "slice(0, L)",
    ),
    Wrong(
        "2.1.3 layers",
        "all layers share the first cache",
        "layer(x, update, rotation, layer_cache)",
        "layer(x, update, rotation, cache[0])",
    ),
    Wrong(
        "2.1.3 cache",
        "one cache for all layers",
        "[TinyKvFullCache() for _ in range(self.num_hidden_layers)]",
        "[TinyKvFullCache()] * self.num_hidden_layers",
    ),
    Wrong(
        "2.1.3 block",
        "the wrong norm before the MLP",
        "self.post_attention_layernorm",
        "self.input_layernorm",
    ),
    Wrong(
        "2.1.3 logits",
        "the last sum is forgotten",
        "_, x = kernels.add_rms_norm(x, update, self.norm, self.eps)",
        "x = kernels.rms_norm(x, self.norm, self.eps)",
    ),
    Wrong("2.1.4", "the offset does not move", "offset += len(new_ids)", "offset += 0"),
    Wrong(
        "2.1.4",
        "the whole sequence again at each step",
        "new_ids = [token]",
        "new_ids = [*new_ids, token]",
    ),
    Wrong(
        "2.1.4", "the offset is one ahead", "offset += len(new_ids)", "offset += len(new_ids) + 1"
    ),
    Wrong(
        "2.2.1 weights",
        "scales and biases are swapped",
        "scales=mlx_layer.scales,\n            biases=mlx_layer.biases",
        "scales=mlx_layer.biases,\n            biases=mlx_layer.scales",
    ),
    Wrong("2.2.1 weights", "the bits are fixed", "bits=mlx_layer.bits", "bits=4"),
    Wrong("2.2.1 linear", "the bias is forgotten", "y if bias is None else y + bias", "y"),
    Wrong("2.2.1 matmul", "transposed at will", "transpose_b)", "True)"),
    Wrong(
        "2.2.2 dot",
        "nibbles in the wrong order",
        "(i % per_word * job.bits)",
        "((per_word - 1 - i % per_word) * job.bits)",
    ),
    Wrong(
        "2.2.2 dot",
        "the bias once a group, not once an element",
        "* sum;",
        "* (sum != 0 ? 1.0f : 0.0f);",
    ),
    Wrong(
        "2.2.2 dot",
        "the first group's scale for all",
        "job.scales, o * groups + g",
        "job.scales, o * groups",
    ),
    Wrong("2.2.2 outputs", "the output is transposed", "m * job.O + o", "o * job.M + m"),
    Wrong(
        "2.2.4 weight",
        "8-bit layers are read as 4-bit",
        "QuantizedWeights.from_mlx_layer(mlx_layer)",
        "__import__('dataclasses').replace(QuantizedWeights.from_mlx_layer(mlx_layer), bits=4)",
    ),
    Wrong(
        "2.2.4 embedding",
        "activations in float32",
        "dtype = table.scales.dtype",
        "dtype = mx.float32",
    ),
    Wrong(
        "2.4.1 flash",
        "the scale is dropped",
        "query, key, value, scale, causal",
        "query, key, value, None, causal",
    ),
    Wrong(
        "2.4.1 flash", '"causal" is forgotten', "scale, causal, None if", "scale, False, None if"
    ),
    Wrong(
        "2.4.1 flash",
        "the mask array is dropped",
        "None if isinstance(mask, str) else mask, lengths",
        "None, lengths",
    ),
    Wrong("2.4.2 row", "online softmax without rescaling the sum", "sum *= factor;", "sum *= 1;"),
    Wrong(
        "2.4.2 row",
        "online softmax without rescaling the output",
        "out[d] *= factor;",
        "out[d] *= 1;",
    ),
    Wrong(
        "2.4.2 row",
        "the maximum is of the last tile alone",
        "float most = largest;",
        "float most = -INFINITE;",
    ),
    Wrong(
        "2.4.2 row", "a row that sees nothing is NaN", "sum == 0 ? 0 : out[d] / sum", "out[d] / sum"
    ),
    Wrong("2.4.2 score", "the wrong key head", "head / (job.H_q / job.H)", "head % job.H"),
    Wrong(
        "2.4.2 score",
        "the mask is scaled too",
        "total * job.scale + added",
        "(total + added) * job.scale",
    ),
    Wrong("2.4.4", "not causal", '"causal"', "None"),
    Wrong("2.4.4", "the buffer's unused room is attended to", "context_lens)", "None)"),
    Wrong(
        "2.6.1 offsets",
        "the first sequence's offset for all",
        "self._start(positions, L) for positions in offset",
        "self._start(offset[0], L) for _ in offset",
    ),
    Wrong(
        "2.6.1 offsets",
        "sequences in reverse",
        "for positions in offset]",
        "for positions in reversed(offset)]",
    ),
    Wrong(
        "2.6.2 fetch",
        "aligned on the left",
        "mx.concatenate([padding, buffer_keys[row, :, :S]], axis=2)",
        "mx.concatenate([buffer_keys[row, :, :S], padding], axis=2)",
    ),
    Wrong(
        "2.6.2 fetch",
        "padding is not hidden",
        "mx.full((1, 1, queries, S_max - S), -mx.inf",
        "mx.full((1, 1, queries, S_max - S), 0",
    ),
    Wrong(
        "2.6.2 fetch",
        "the mask of another length",
        "causal_mask(queries, S, key.dtype)",
        "causal_mask(queries, S + 1, key.dtype)[:, :S]",
    ),
    Wrong(
        "2.6.2 remove",
        "the slot is not cleared",
        "self.lengths[slot] = None",
        "self.lengths[slot] = 0",
    ),
    Wrong(
        "2.6.2 append",
        "idle slots grow too",
        "self.lengths = [None if length is None else length + L for length in self.lengths]",
        "self.lengths = [(length or 0) + L for length in self.lengths]",
    ),
    Wrong("2.6.2 add", "the request lands in slot 0", "offsets[slot] = 0", "offsets[0] = 0"),
    Wrong(
        "2.6.2 add",
        "the slot forgets its prompt",
        "self.lengths[slot] = cache.offset",
        "self.lengths[slot] = 0",
    ),
    Wrong(
        "2.6.3 positions",
        "the first request's position for all",
        "slice(start, start + L) for start in given",
        "slice(given[0], given[0] + L) for start in given",
    ),
    Wrong(
        "2.6.3 positions",
        "one position too far",
        "slice(start, start + L)",
        "slice(start + 1, start + 1 + L)",
    ),
    Wrong(
        "2.6.4 step",
        "decoding waits for all prefills",
        "if any(self.slots):",
        "if all(self.slots) or not self.waiting:",
    ),
    Wrong(
        "2.6.4 decode",
        "a request is one position behind",
        "0 if request is None else request.offset for request",
        "0 if request is None else request.offset - 1 for request",
    ),
    Wrong(
        "2.6.4 decode",
        "a finished request keeps its place in the cache",
        "cache.remove_request(slot)",
        "cache.lengths",
    ),
    Wrong(
        "2.6.4 place",
        "the answer of a request that ends at once is lost",
        "self.answers[request.index] = request.text",
        "pass",
    ),
    Wrong(
        "2.6.4 place",
        "the first layer's cache for all layers",
        "in zip(self._caches, request.cache, strict=True):",
        "in zip(self._caches, request.cache[:1] * len(self._caches), strict=True):",
    ),
    Wrong(
        "2.6.5",
        "the whole prompt at once",
        "self.offset : self.offset + self._prefill_step",
        "self.offset :",
    ),
    Wrong(
        "2.6.5",
        "each chunk begins at position 0",
        "mx.array([chunk]), self.offset, self.cache",
        "mx.array([chunk]), 0, self.cache",
    ),
    Wrong(
        "2.6.5",
        "a token is sampled after every chunk",
        "        if self.is_prefilled:\n            self.add_token",
        "        if self.offset:\n            self.add_token",
    ),
]
