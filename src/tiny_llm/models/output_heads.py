"""Heads other than the LM head: embeddings, relevance scores, MTP.

A pooling model computes its result at the prompt's last token:

    embed    the hidden state after the final norm, scaled to unit length (Qwen3-Embedding)
    score    the softmax over "yes" and "no" as the next token (Qwen3-Reranker)

A multi-token prediction (MTP) layer predicts the token after the next one. Qwen3.5 checkpoints have
an extra decoder layer, trained to predict one token further:

    h_t          the model's hidden state at position t, after the final norm
    x_{t+1}      the next token, sampled from h_t
    g_t          = norm(layer(fc([norm(embedding(x_{t+1})) | norm(h_t)])))
    LM head(g_t) logits of x_{t+2}

The layer shares the model's embedding and LM head. In the next drafting step, g_t replaces
h_{t+1}, so the layer can draft any number of tokens. Its KV cache holds all positions before t,
computed from the model's hidden states.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2, arXiv 2412.19437; Qwen's
layer takes the hidden state after the final norm, as in vLLM.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from .. import kernels
from ..errors import short_repr
from ..kv_storage import PagedStorage, RaggedBatch
from .checkpoint.safe_io import check_file_name, read_json, read_text
from .checkpoint.weights import CheckpointModel, TreeNode
from .families.decoder import Decoder, norm_weight
from .families.linear import linear_from

Task = Literal["generate", "embed", "score"]
TASKS: tuple[Task, ...] = ("generate", "embed", "score")

MODULES_FILE = "modules.json"  # list of a sentence-transformers model's modules

# Prompt template that Qwen3-Reranker was trained with.
SCORE_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
SCORE_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class EmbeddingDecoder(Decoder):
    """Decoder whose `ragged_logits` returns hidden states, len(rows)×hidden_size."""

    ragged_logits = Decoder.ragged_features


def pool_embeddings(features: mx.array) -> mx.array:
    """Scales n hidden states to unit length, in float32: n×E -> n×E."""
    features = features.astype(mx.float32)
    return features / mx.linalg.norm(features, axis=-1, keepdims=True)


def pool_scores(logits: mx.array, no_token: int, yes_token: int) -> mx.array:
    """Probability of "yes" versus "no" as n prompts' next token: n×V -> n×1."""
    pair = mx.stack([logits[:, no_token], logits[:, yes_token]], axis=-1).astype(mx.float32)
    return mx.softmax(pair, axis=-1)[:, 1:]


def detect_task(folder: Path) -> Task:
    """Returns "embed" if the folder has a sentence-transformers pooling layer, else "generate".

    Raises:
        ValueError: a pooling mode other than last-token pooling, or a module of unknown effect.
    """
    if not (folder / MODULES_FILE).is_file():
        return "generate"
    modules = json.loads(read_text(folder, MODULES_FILE))
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise ValueError(f"{MODULES_FILE} is not a list of objects")
    paths = {str(each.get("type")).rpartition(".")[2]: str(each.get("path")) for each in modules}
    if "Pooling" not in paths:
        return "generate"
    unknown = sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise ValueError(
            f"{MODULES_FILE} has a module of type {short_repr(unknown[0])}, expected only "
            "Transformer, Pooling and Normalize"
        )
    check_file_name(folder, paths["Pooling"])
    config = read_json(folder / paths["Pooling"], "config.json")
    # sentence-transformers 6 stores the mode's name, older versions a flag for each mode.
    modes = [config["pooling_mode"]] if config.get("pooling_mode") else []
    modes += [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if modes not in (["lasttoken"], ["pooling_mode_lasttoken"]):
        found = ", ".join(map(str, modes)) or "no pooling mode"
        raise ValueError(
            f"{paths['Pooling']}/config.json has {found}, expected pooling_mode_lasttoken only"
        )
    return "embed"


def score_tokens(tokenizer: Any) -> tuple[int, int]:
    ids = [tokenizer.encode(word, add_special_tokens=False) for word in ("no", "yes")]
    if any(len(tokens) != 1 for tokens in ids):
        raise ValueError('its tokenizer does not encode "yes" and "no" as single tokens')
    return ids[0][0], ids[1][0]


class MtpDecoder(Decoder):
    """MTP layer as a single-layer decoder; needs `load_weights(…, mtp=True)`."""

    def __init__(self, mlx_model: CheckpointModel, *args: Any, **options: Any):
        super().__init__(mtp_checkpoint(mlx_model), *args, **options)
        mtp = mlx_model.mtp
        self.fc = linear_from(mtp.fc, self.dtype)
        self.embedding_norm = norm_weight(self.config, mtp.pre_fc_norm_embedding, self.dtype)
        self.hidden_norm = norm_weight(self.config, mtp.pre_fc_norm_hidden, self.dtype)

    def mtp_features(
        self,
        ids: Sequence[int] | mx.array,
        hidden: mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Like `ragged_features`, but returns g_t; see the module docstring.

        Args:
            ids: T token ids: x_{t+1}, the token after each position t of the batch.
            hidden: T×hidden_size: h_t, or g_{t-1} after the first drafting step.
            batch, rows, storage: see `Decoder.ragged_logits`.

        Returns:
            g_t for each of `rows`, len(rows)×hidden_size.
        """
        x = kernels.rms_norm(
            self.embedding(kernels.as_int32(ids)[None]), self.embedding_norm, self.eps
        )
        hidden = kernels.rms_norm(hidden[None], self.hidden_norm, self.eps)
        return self._features(self.fc(mx.concatenate([x, hidden], axis=-1)), batch, rows, storage)


def mtp_checkpoint(mlx_model: CheckpointModel) -> CheckpointModel:
    model = TreeNode()
    model.embed_tokens = mlx_model.model.embed_tokens
    model.layers, model.norm = mlx_model.mtp.layers, mlx_model.mtp.norm
    parts = {"model": model}
    if not mlx_model.args.tie_word_embeddings:
        parts["lm_head"] = mlx_model.lm_head
    return CheckpointModel(mlx_model.args.mtp_config, parts)
