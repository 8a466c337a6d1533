"""Dense attention: each query's weighted mean of the values.

In course order: single-head attention, multi-head attention, the causal mask and grouped-query
attention.

Shape letters: B batch, L queries, S keys, E hidden size, H_q query heads, H key/value heads,
D head size, N.. any leading dimensions.
"""

from typing import Any, Literal

import mlx.core as mx

from ..basics import linear, softmax

Mask = mx.array | Literal["causal"] | None


def is_custom_mask(mask: Any) -> bool:
    """Whether `mask` is neither None nor "causal"."""
    return mask is not None and not (isinstance(mask, str) and mask == "causal")


def scaled_dot_product_attention_simple(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: mx.array | None = None,
) -> mx.array:
    """Computes softmax(query · keyᵀ · scale + mask) · value.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.

    Args:
        query: N..×L×D, the shape of the result.
        key, value: N..×S×D.
        scale: factor for the scores; 1/√D if None, which keeps their variance near one.
        mask: added to the scores, broadcastable to N..×L×S; −inf hides a key.

    Raises:
        ValueError: the mask is "causal" or boolean instead of additive.
    """
    if mask is not None and (not isinstance(mask, mx.array) or mask.dtype == mx.bool_):
        given = f'"{mask}"' if isinstance(mask, str) else "a boolean array"
        raise ValueError(
            "scaled_dot_product_attention_simple: mask must be a floating-point array to add to "
            f"the scores, got {given}; scaled_dot_product_attention_grouped accepts it."
        )
    # [task 1.1.1 attention]
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = query @ key.swapaxes(-2, -1) * scale  # N..×L×S
    if mask is not None:
        scores = scores + mask.astype(scores.dtype)
    return softmax(scores, axis=-1) @ value
    # [/task 1.1.1 attention]


class SimpleMultiHeadAttention:
    """Multi-head attention with one key/value head per query head and no biases.

    The hidden size is split into `num_heads` independent heads of size D = E / num_heads.

    Args:
        hidden_size: E.
        num_heads: H; must divide E.
        wq, wk, wv: projections, (H·D)×E.
        wo: output projection, E×(H·D).

    Raises:
        ValueError: `num_heads` does not divide `hidden_size`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
    ):
        if hidden_size % num_heads != 0:
            raise ValueError(
                f"SimpleMultiHeadAttention: num_heads must divide hidden_size, got {num_heads} "
                f"heads for hidden_size {hidden_size}."
            )
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.wq = wq
        self.wk = wk
        self.wv = wv
        self.wo = wo

    def __call__(
        self, query: mx.array, key: mx.array, value: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        """Projects the inputs, attends in each head, projects the result: B×L×E.

        Args:
            query: B×L×E.
            key, value: B×S×E.
            mask: added to the scores, broadcastable to B×H×L×S, or None.
        """
        # [task 1.1.2 multi-head]
        x = scaled_dot_product_attention_simple(
            self._split_heads(linear(query, self.wq)),
            self._split_heads(linear(key, self.wk)),
            self._split_heads(linear(value, self.wv)),
            mask=mask,
        )  # B×H×L×D
        B, _, L, _ = x.shape
        x = x.swapaxes(1, 2).reshape(B, L, self.hidden_size)
        return linear(x, self.wo)
        # [/task 1.1.2 multi-head]

    def _split_heads(self, x: mx.array) -> mx.array:
        """Reshapes B×L×E to B×H×L×D, so that heads become a batch dimension."""
        # [task 1.1.2 split-heads]
        B, L, _ = x.shape
        return x.reshape(B, L, self.num_heads, self.head_dim).swapaxes(1, 2)
        # [/task 1.1.2 split-heads]


def causal_mask(L: int, S: int, dtype: mx.Dtype) -> mx.array:
    """Additive causal mask L×S: 0 where query i may attend to key j, else −inf.

    The L queries are the *last* L of S positions, because a cache may hold earlier keys: query i
    is at position i + S − L and attends to every j up to that position.
    """
    # [task 1.3.2 causal-mask]
    visible = mx.tri(L, S, k=S - L, dtype=mx.bool_)
    return mx.where(visible, mx.array(0, dtype), mx.array(-mx.inf, dtype))
    # [/task 1.3.2 causal-mask]


def scaled_dot_product_attention_grouped(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, mask: Mask = None
) -> mx.array:
    """Grouped-query attention: each key/value head serves H_q / H query heads.

    Query head h reads key/value head h // (H_q / H). K and V broadcast over a separate group
    dimension instead of being repeated in memory. Decoding reads all keys and values for every
    token, so repeating them would undo GQA's savings in memory traffic.

    Source: Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models" (2023).

    Args:
        query: N..×H_q×L×D, the shape of the result.
        key, value: N..×H×S×D.
        scale: factor for the scores; 1/√D if None.
        mask: None, "causal", or an array broadcastable to N..×H_q×L×S, floating (added to the
            scores) or bool (True means visible).

    Raises:
        ValueError: H does not divide H_q, or `mask` is an unknown string.
    """
    *N, H_q, L, D = query.shape
    H, S = key.shape[-3], key.shape[-2]
    if H_q % H != 0:
        raise ValueError(
            "scaled_dot_product_attention_grouped: the number of key/value heads must divide the "
            f"number of query heads, got {H} and {H_q}."
        )
    group = H_q // H

    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(
                'scaled_dot_product_attention_grouped: mask must be None, "causal" or an array, '
                f'got "{mask}".'
            )
        mask = causal_mask(L, S, query.dtype)
    elif mask is not None:
        # [task 1.3.1 mask]
        if mask.dtype == mx.bool_:
            mask = mx.where(mask, 0.0, -mx.inf).astype(query.dtype)
        mask = mx.broadcast_to(mask, (*N, H_q, L, S)).reshape(*N, H, group, L, S)
        # [/task 1.3.1 mask]

    # [task 1.3.1 grouped]
    x = scaled_dot_product_attention_simple(
        query.reshape(*N, H, group, L, D),
        mx.expand_dims(key, -3),  # N..×H×1×S×D
        mx.expand_dims(value, -3),
        scale=scale,
        mask=mask,
    )  # N..×H×group×L×D
    return x.reshape(*N, H_q, L, D)
    # [/task 1.3.1 grouped]
