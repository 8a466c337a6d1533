"""What a decoder is made of: its sizes and parts, settled once and then frozen."""

from dataclasses import dataclass

from .rope import RopeScaling


@dataclass(frozen=True)
class MoEConfig:
    """A mixture of experts in the place of the MLP.

    Attributes:
        num_experts: how many there are.
        top_k: how many of them a token goes through.
        intermediate_size: I of each.
        norm_topk_prob: whether the chosen experts' probabilities are scaled to a sum of 1.
        layers: which layers have experts; the others have an MLP.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: frozenset[int]


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's configuration; sizes have the names of `config.json`.

    `registry.read_config` makes it.

    Attributes:
        model_type: the family, as `config.json` names it.
        max_position_embeddings: positions that the model serves: as far as RoPE is stretched, and
            no sliding window hides a token.
        rope_theta: RoPE's base.
        rope_scaling: how RoPE is stretched; None for plain RoPE.
        tie_word_embeddings: whether the table that reads tokens also scores them.
        qkv_bias: whether queries, keys and values have a bias.
        o_proj_bias: whether attention's output has one.
        mlp_bias: whether the three layers of the MLP have one.
        qk_norm: whether each query and key head is normalized before RoPE.
        experts: what is in the place of the MLP; None for an MLP in every layer.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_proj_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: MoEConfig | None = None

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in the place of an MLP."""
        return self.experts is not None and layer in self.experts.layers
