"""Engine options: the single definition behind keywords, flags and documentation.

`LLM` takes them as keywords; commands, `serve --model NAME=…` and Ray Serve as flags or text.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError, short_repr, validate_seed
from ..kv_storage.int8_rows import KvCacheDtype
from ..models.output_heads import Task
from ..models.parallel.launch import num_launched_ranks
from .inputs.options import byte_count, check_options, option
from .scheduling.config import Listener
from .spec_decode.draft_tokens import MAX_NGRAM_DRAFT_TOKENS
from .tool_calls.registry import AUTO, NAMES

StrPath = str | os.PathLike[str]
Model = StrPath | tuple[Any, Any]

DEFAULT_DRAFTS = 4  # draft tokens per step with a draft model
DEFAULT_MTP_DRAFTS = 1
# Commands that accept an option as a flag; the default is only `serve`.
ENGINE_COMMANDS = ("main", "chat", "batch", "bench", "serve")
MODEL_COMMANDS = (*ENGINE_COMMANDS, "check")
MEMORY_COMMANDS = ("serve", "check")


def rank_count(text: str) -> int:
    """Parses the number of ranks; if a launcher started several, it must be their number."""
    size, launched = int(text), num_launched_ranks()
    if launched not in (1, size):
        raise UserError(f"must be {launched}, the number of launched ranks, got {size}; omit it")
    return size


def lora_module(text: str) -> tuple[str, str]:
    """Parses NAME=DIR: an adapter's name and folder."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise UserError(f"must be NAME=DIR, got {text}")
    return name, path


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """Arguments of `LLM`, named as in vLLM where it has the option.

    Attributes:
        model: short name, hub id, folder, GGUF file, ollama:NAME, lmstudio:NAME, or the result of
            `load_weights` or `load`.
        draft_model: draft model for speculative decoding, with the same vocabulary.
        speculative: speculative decoding without a draft model: n-gram lookup in the prompt and
            output, or the multi-token prediction layer of Qwen3.5 and Qwen3-Next (mtp).
        num_drafts: maximum draft tokens per request and step; by default, 4 with --draft-model, 7
            with ngram, 1 with mtp.
        block_size: tokens per KV cache page; only full pages are shared.
        attention_backend: paged reads pages in place; flash (bit-identical) and reference (plain
            MLX) gather them first and are slower, for comparison.
        kv_cache_dtype: auto stores keys and values in the dtype of the activations; int8 stores
            8-bit integers with a scale per token and head: nearly twice the tokens in the same
            memory, at a small error.
        activation_bits: 8 rounds the inputs of quantized layers to 8-bit integers, with a scale per
            token and group of weights: faster prompts on a CPU, at a small error; 16 is exact.
        adapter_path: LoRA adapter for all requests: a folder written by mlx_lm.lora or PEFT.
        lora_modules: LoRA adapters by name; a request selects one by its name.
        enable_prefix_caching: whether to keep and share the pages of common prefixes.
        prefix_cache_dir: directory that keeps prefix cache pages for later runs and processes;
            models without full attention then keep the pages before their window in memory.
        prefix_cache_disk_bytes: maximum bytes in --prefix-cache-dir, over all models; the least
            recently used pages are evicted; by default, 1e10.
        tensor_parallel_size: shard the model across N processes on this machine, or across the N
            ranks started by mlx.launch or mpirun; affects rounding, and thus the output.
        load_format: auto reads the weights; dummy generates random weights in the shapes and
            formats of config.json, the only file required, for benchmarks.
        kv_cache_bytes: maximum bytes of the KV cache and recurrent states, allocated on demand;
            limits the total context of all running requests; by default, 3/4 of the memory left by
            the weights, or 512 MiB per model if several are served.
        max_num_seqs: maximum number of running sequences.
        max_num_batched_tokens: maximum tokens per step, draft tokens included; longer prompts are
            prefilled in chunks; larger values increase prefill throughput and inter-token latency.
        max_model_len: maximum prompt plus completion tokens; by default, the model's context
            length.
        task: embed for embeddings, score for reranking; auto is embed for a checkpoint with a
            sentence-transformers pooling layer, otherwise generate.
        scheduling_policy: fair schedules short prompts ahead of long ones, delaying a long prompt
            by at most about its own length in tokens; fcfs computes prompts in order of arrival.
        step_time_target: target seconds per step while requests are decoding; limits the prompt
            tokens in the same step, except in an occasional step of up to ten times this duration,
            which keeps prompts progressing (fair only; 0.1 by default in `serve`).
        chat_template: Jinja chat template (a file in flags, otherwise its source); by default, the
            model's.
        tool_call_parser: tool-call format; auto detects it in the model's chat template.
        max_queue: maximum requests queued beyond `max_num_seqs`; further requests raise
            `QueueFullError`.
        seed: base seed for requests without a seed, combined with their arrival order; None draws
            a random base seed.
        listener: callback for every event (`scheduling/events.py`), for example a `Recorder`.

    Raises:
        UserError: a value is not allowed, or options conflict.
    """

    model: Model = field(kw_only=False, repr=False)
    draft_model: Model | None = option(None, "NAME", commands=MODEL_COMMANDS, engine_only=None)
    speculative: Literal["ngram", "mtp"] | None = option(
        None, commands=ENGINE_COMMANDS, engine_only="supports n-gram and MTP speculation"
    )
    num_drafts: int | None = option(None, "N", 1, commands=ENGINE_COMMANDS)
    block_size: int = option(
        32, "N", 1, commands=MODEL_COMMANDS, engine_only="has a configurable page size"
    )
    attention_backend: Literal["paged", "flash", "reference"] = option(
        "paged", commands=ENGINE_COMMANDS, engine_only="has selectable attention backends"
    )
    kv_cache_dtype: KvCacheDtype = option(
        "auto", commands=ENGINE_COMMANDS, engine_only="has an 8-bit KV cache"
    )
    activation_bits: Literal[16, 8] = option(
        16,
        commands=ENGINE_COMMANDS,
        engine_only="rounds activations to 8 bits",
        doc_link="speed.md#8-bit-activations",
    )
    adapter_path: StrPath | None = option(
        None, "DIR", parse=Path, commands=ENGINE_COMMANDS, doc_link="families.md#lora-adapters"
    )
    lora_modules: Mapping[str, StrPath] | None = option(
        None,
        "NAME=DIR",
        parse=lora_module,
        repeat={"action": "extend", "nargs": "+"},
        doc_link="server.md#lora-adapters",
    )
    enable_prefix_caching: bool = option(True, commands=())
    prefix_cache_dir: StrPath | None = option(
        None, "DIR", parse=Path, commands=ENGINE_COMMANDS, doc_link="server.md#prefix-cache-on-disk"
    )
    prefix_cache_disk_bytes: float | None = option(
        None, "N", 1, parse=byte_count, commands=ENGINE_COMMANDS
    )
    tensor_parallel_size: int = option(
        *(1, "N", 1),
        parse=rank_count,
        commands=MODEL_COMMANDS,
        alias="--tp",
        flag_default=num_launched_ranks,
        engine_only="shards a model across processes",
        doc_link="parallel.md#tensor-parallelism-on-one-machine",
    )
    load_format: Literal["auto", "dummy"] = option(
        "auto", commands=ENGINE_COMMANDS, engine_only=None
    )
    kv_cache_bytes: float | None = option(
        *(None, "N", 1),
        parse=byte_count,
        commands=("batch", *MEMORY_COMMANDS),
        engine_only="has a memory budget for the KV cache",
    )
    max_num_seqs: int = option(32, "N", 1, commands=MEMORY_COMMANDS)
    max_num_batched_tokens: int = option(256, "N", 1)
    max_model_len: int | None = option(None, "N", 2, commands=MEMORY_COMMANDS)
    task: Literal["auto", Task] = option(
        "auto", commands=MEMORY_COMMANDS, doc_link="server.md#embeddings-and-reranking"
    )
    scheduling_policy: Literal["fair", "fcfs"] = option("fcfs", flag_default=lambda: "fair")
    step_time_target: float | None = option(None, "S", 1e-3)
    chat_template: str | None = option(None, "FILE")
    tool_call_parser: str = option(AUTO, choices=(AUTO, *NAMES), doc_link="clients.md#tool-calls")
    max_queue: int | None = option(None, commands=())
    seed: int | None = 0
    listener: Listener | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.seed is not None:
            validate_seed(self.seed)
        if not (self.listener is None or callable(self.listener)):
            raise UserError(
                "listener must be a callable that takes one event, or None, got "
                f"{short_repr(self.listener)}."
            )
        if not isinstance(self.chat_template, str | None):
            raise UserError(
                f"chat_template must be a string or None, got {short_repr(self.chat_template)}."
            )
        self._check_combinations()
        self._check_prefix_cache()
        self._check_adapters()

    def _check_combinations(self) -> None:
        has_draft, speculative = self.draft_model is not None, self.speculative
        if self.num_drafts is not None and not (has_draft or speculative):
            raise UserError(
                f"num_drafts={self.num_drafts} requires draft_model or speculative='ngram' or "
                "'mtp'; set one of them, or remove num_drafts."
            )
        if has_draft and speculative is not None:
            raise UserError(
                f"speculative='{speculative}' and draft_model cannot be combined; remove one of "
                "them."
            )
        if self.kv_cache_dtype == "int8" and self.attention_backend == "flash":
            raise UserError(
                "attention_backend='flash' does not support kv_cache_dtype='int8'; use 'paged' or "
                "'reference'."
            )
        is_parallel = self.tensor_parallel_size > 1
        if self.task in ("embed", "score") and (is_parallel or has_draft or speculative == "mtp"):
            raise UserError(
                f"task='{self.task}' does not support draft_model, speculative='mtp' or "
                "tensor_parallel_size above 1; remove them."
            )
        if is_parallel and not isinstance(self.model, str | os.PathLike):
            raise UserError(
                "tensor_parallel_size above 1 does not support a loaded model, because each "
                "process loads its own shard; pass a name or folder."
            )
        if self.step_time_target is not None and self.scheduling_policy != "fair":
            raise UserError(
                "step_time_target requires scheduling_policy='fair'; set both, or remove the "
                "target."
            )

    def _check_prefix_cache(self) -> None:
        folder, max_bytes = self.prefix_cache_dir, self.prefix_cache_disk_bytes
        if folder is None and max_bytes is not None:
            raise UserError(
                f"prefix_cache_disk_bytes={short_repr(max_bytes)} requires prefix_cache_dir; set "
                "both or neither."
            )
        path = None if folder is None else Path(os.path.expanduser(folder))
        if path is not None and path.exists() and not path.is_dir():
            raise UserError(f"prefix_cache_dir must be a directory; {folder} is a file.")
        if folder is not None and not self.enable_prefix_caching:
            raise UserError(
                "prefix_cache_dir requires enable_prefix_caching=True; set both, or omit "
                "prefix_cache_dir."
            )

    def _check_adapters(self) -> None:
        modules = self.lora_modules
        if modules is None:
            return
        if self.adapter_path is not None:
            raise UserError(
                "adapter_path and lora_modules cannot be combined; pass all adapters in "
                "lora_modules."
            )
        if not isinstance(modules, Mapping):
            raise UserError(f"lora_modules must map names to folders, got {short_repr(modules)}.")
        for name, path in modules.items():
            if not (isinstance(name, str) and name and isinstance(path, str | os.PathLike)):
                raise UserError(
                    f"lora_modules must map names to folders, got {short_repr({name: path})}."
                )

    @property
    def adapter_folders(self) -> Mapping[Any, StrPath]:
        """Adapter folders by name; the key None is for `adapter_path`."""
        if self.adapter_path is not None:
            return {None: self.adapter_path}
        return self.lora_modules or {}

    @property
    def memory_limits(self) -> tuple[int, int, int | None, float | None, int, bool]:
        """Last arguments of `plan_kv_memory`: page size, limits and memory budget."""
        limits = self.block_size, self.max_num_seqs, self.max_model_len, self.kv_cache_bytes
        return *limits, self.max_num_batched_tokens, self.prefix_cache_dir is not None

    @property
    def max_drafts(self) -> int:
        """Maximum draft tokens per request and step; 0 without speculative decoding."""
        if self.draft_model is None and self.speculative is None:
            return 0
        defaults = {"ngram": MAX_NGRAM_DRAFT_TOKENS, "mtp": DEFAULT_MTP_DRAFTS}
        return self.num_drafts or defaults.get(self.speculative or "", DEFAULT_DRAFTS)
