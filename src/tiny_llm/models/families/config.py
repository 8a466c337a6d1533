"""Decoder configuration: sizes and parts of a model of any family."""

from dataclasses import dataclass

from .rope import RopeScaling


@dataclass(frozen=True)
class MoEConfig:
    """Mixture of experts in place of the MLP.

    Attributes:
        num_experts: number of experts per layer.
        top_k: number of experts per token.
        intermediate_size: I of an expert.
        norm_topk_prob: whether the chosen experts' probabilities are normalized to a sum of 1.
        layers: indices of the layers with experts; other layers have an MLP.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: frozenset[int]


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's configuration; sizes have the names of `config.json`.

    Created by `registry.read_config`.

    Attributes:
        model_type: the family's `model_type` in `config.json`.
        max_position_embeddings: context length served: within scaled RoPE's context and any sliding
            window.
        rope_theta: RoPE's base.
        rope_scaling: RoPE scaling; None for plain RoPE.
        tie_word_embeddings: whether the embedding is also the LM head.
        qkv_bias: whether q_proj, k_proj and v_proj have a bias.
        o_proj_bias: whether o_proj has a bias.
        mlp_bias: whether the MLP's three layers have a bias.
        qk_norm: whether query and key heads are normalized before RoPE.
        experts: mixture of experts; None for an MLP in every layer.
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
        """Whether a layer has experts in place of the MLP."""
        return self.experts is not None and layer in self.experts.layers
