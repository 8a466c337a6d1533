"""Attention: every query takes a weighted mean of the values, weighted by how well keys match.

In the order the course meets them: one head, many heads, the causal mask, grouped heads.
Shapes use the course's letters: B batch, L queries, S keys, E hidden size, H_q query heads,
H key/value heads, D head size, N.. any leading dimensions.
"""

from typing import Literal

import mlx.core as mx

from .basics import linear, softmax

Mask = mx.array | Literal["causal"] | None


def scaled_dot_product_attention_simple(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: mx.array | None = None,
) -> mx.array:
    """softmax(query · keyᵀ · scale + mask) · value.

    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1.

    Args:
        query: N..×L×D.
        key: N..×S×D.
        value: N..×S×D.
        scale: multiplies the scores; 1/√D if None, which keeps their variance near one.
        mask: added to the scores, broadcastable to N..×L×S; −inf hides a key.

    Returns:
        N..×L×D.
    """
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = query @ key.swapaxes(-2, -1) * scale  # N..×L×S
    if mask is not None:
        scores = scores + mask.astype(scores.dtype)
    return softmax(scores, axis=-1) @ value


class SimpleMultiHeadAttention:
    """Multi-head attention with as many key/value heads as query heads, and no biases.

    The hidden size is split into `num_heads` heads of D = E / num_heads; each attends on its own.

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
                f"SimpleMultiHeadAttention: hidden_size {hidden_size} cannot be split into "
                f"{num_heads} heads; num_heads must divide it."
            )
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.wq = wq
        self.wk = wk
        self.wv = wv
        self.wo = wo

    def __call__(
        self,
        query: mx.array,
        key: mx.array,
        value: mx.array,
        mask: mx.array | None = None,
    ) -> mx.array:
        """Attends from `query` to `key` and `value`.

        Args:
            query: B×L×E.
            key: B×S×E.
            value: B×S×E.
            mask: added to the scores, broadcastable to B×H×L×S, or None.

        Returns:
            B×L×E.
        """
        x = scaled_dot_product_attention_simple(
            self._split_heads(linear(query, self.wq)),
            self._split_heads(linear(key, self.wk)),
            self._split_heads(linear(value, self.wv)),
            mask=mask,
        )  # B×H×L×D
        B, _, L, _ = x.shape
        x = x.swapaxes(1, 2).reshape(B, L, self.hidden_size)
        return linear(x, self.wo)

    def _split_heads(self, x: mx.array) -> mx.array:
        """B×L×E -> B×H×L×D: heads become a batch dimension of the attention."""
        B, L, _ = x.shape
        return x.reshape(B, L, self.num_heads, self.head_dim).swapaxes(1, 2)


def causal_mask(L: int, S: int, dtype: mx.Dtype) -> mx.array:
    """The mask that hides the future: 0 where query i may see key j, −inf elsewhere.

    The L queries are the *last* L of S positions, as they are when a cache holds the keys before
    them: query i stands at position i + S − L and sees every j up to there.

    Returns:
        L×S of `dtype`.
    """
    visible = mx.tri(L, S, k=S - L, dtype=mx.bool_)
    return mx.where(visible, mx.array(0, dtype), mx.array(-mx.inf, dtype))


def scaled_dot_product_attention_grouped(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: Mask = None,
) -> mx.array:
    """Attention in which each key/value head serves a group of H_q / H query heads.

    Query head h reads key/value head h // (H_q / H). The group gets a dimension of its own, over
    which K and V broadcast: they are never repeated in memory. That is the point of GQA, whose
    keys and values must be read for every token.

    Source: Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models" (2023).

    Args:
        query: N..×H_q×L×D.
        key: N..×H×S×D.
        value: N..×H×S×D.
        scale: multiplies the scores; 1/√D if None.
        mask: None, "causal", or an array added to the scores, broadcastable to N..×H_q×L×S.

    Returns:
        N..×H_q×L×D.

    Raises:
        ValueError: H does not divide H_q, or `mask` is an unknown string.
    """
    *N, H_q, L, D = query.shape
    H, S = key.shape[-3], key.shape[-2]
    if H_q % H != 0:
        raise ValueError(
            f"scaled_dot_product_attention_grouped: {H_q} query heads cannot share {H} key/value "
            "heads; the second must divide the first."
        )
    group = H_q // H

    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(
                f'scaled_dot_product_attention_grouped: mask "{mask}" is unknown; '
                'give None, "causal" or an array.'
            )
        mask = causal_mask(L, S, query.dtype)
    elif mask is not None:
        mask = mx.broadcast_to(mask, (*N, H_q, L, S)).reshape(*N, H, group, L, S)

    x = scaled_dot_product_attention_simple(
        query.reshape(*N, H, group, L, D),
        mx.expand_dims(key, -3),  # N..×H×1×S×D
        mx.expand_dims(value, -3),
        scale=scale,
        mask=mask,
    )  # N..×H×group×L×D
    return x.reshape(*N, H_q, L, D)
