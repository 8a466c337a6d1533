"""OpenVINO GenAI as a worker: `python -m benchmark.systems.openvino_worker FOLDER`.

`--export` creates the folder from an unquantized one with optimum-intel: every matrix, including
the embedding, in symmetric 4-bit groups of 128. OpenVINO rounds activations to 8 bits (dynamic
quantization) and multiplies integers. Keys and values are set to 16 bits; the default is 8. With
`--exact`, activations, keys and values are float32.
"""

import json
import time
from pathlib import Path
from typing import Any

from .worker import DECODE_STEPS, num_threads, serve_or_export, token_ids

GROUP_SIZE = 128
SCALE_BITS = 16
CACHE_GIGABYTES = 4
EXACT = {
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
}


class OpenVino:
    """A model in OpenVINO's format, run by the continuous batching pipeline."""

    def __init__(self, folder: Path, exact: bool = False):
        import numpy as np
        import openvino
        import openvino_genai

        self._np, self._openvino, self._api = np, openvino, openvino_genai
        threads = num_threads()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # otherwise, repeated prompts would be cache hits
        scheduler.cache_size = CACHE_GIGABYTES
        scheduler.max_num_batched_tokens = 8192  # an entire prompt per step
        self._pipeline: Any = openvino_genai.LLMPipeline(
            str(folder),
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=threads,
            **(EXACT if exact else {"KV_CACHE_PRECISION": "f16"}),
        )
        config = json.loads((folder / "config.json").read_text())
        self._vocab_size: int = config["vocab_size"]
        self.weight_bits = 4 + SCALE_BITS / GROUP_SIZE
        self.about = (
            f"openvino-genai {openvino_genai.__version__}, int4 in groups of {GROUP_SIZE}, "
            f"{'float32 activations and KV' if exact else '8-bit activations, float16 KV'}, "
            f"{threads} threads"
        )
        self._time(1, 8, 1)

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        seconds, _ = self._time(1, tokens, 1)
        return {"seconds": seconds}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`; the context is a prefilled prompt."""
        seconds, first = self._time(batch, context, DECODE_STEPS)
        return {"seconds": (seconds - first) / (DECODE_STEPS - 1)}

    def generate(self, ids: list[int], tokens: int) -> dict[str, Any]:
        """Greedy output: {"tokens": …, "excluded": tokens that cannot occur}."""
        return {"tokens": list(self._generate([ids], tokens).tokens[0]), "excluded": []}

    def _time(self, batch: int, tokens: int, new_tokens: int) -> tuple[float, float]:
        """Seconds until the end of the output, and until its first token."""
        prompts = [token_ids(tokens, self._vocab_size)] * batch
        start = time.perf_counter()
        result = self._generate(prompts, new_tokens)
        seconds = time.perf_counter() - start
        return seconds, result.perf_metrics.get_ttft().mean / 1000

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> Any:
        """Generates greedy outputs of a given length for prompts of equal length."""
        ids = self._np.array(prompts, self._np.int64)
        mask = self._np.ones_like(ids)
        inputs = self._api.TokenizedInputs(self._openvino.Tensor(ids), self._openvino.Tensor(mask))
        config = self._api.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        return self._pipeline.generate(inputs, config)


def export(source: Path, folder: Path, exact: bool) -> None:
    """Exports an unquantized checkpoint to OpenVINO's format; ignores `exact`."""
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    config = OVWeightQuantizationConfig(
        bits=4, group_size=GROUP_SIZE, sym=True, ratio=1.0, all_layers=True
    )
    model = OVModelForCausalLM.from_pretrained(
        str(source), export=True, compile=False, quantization_config=config
    )
    model.save_pretrained(str(folder))


if __name__ == "__main__":
    serve_or_export(__doc__ or "", OpenVino, export)
