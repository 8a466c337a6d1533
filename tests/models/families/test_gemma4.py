"""Gemma 4's table of per-layer inputs, which is mapped from the file."""

import mlx.core as mx
import pytest

from tests.models.support import GEMMA4, random_ids, sequence_logits, write_family
from tests.support import assert_same_bits, resident_bytes_of_file
from tiny_llm import load_weights
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.loading import serving_model


@pytest.mark.parametrize("bits", [None, 4, 5])
def test_mapped_table(tmp_path, bits):
    """The table of a loaded checkpoint stays in its file, in its format."""
    config = {**GEMMA4, "vocab_size_per_layer_input": 300_000}
    if bits is not None:
        config["quantization"] = {"group_size": 64, "bits": bits}
    folder = write_family(tmp_path, config)
    unmapped = read_checkpoint(folder, config)
    expected = sequence_logits(serving_model("it", unmapped, page_size=16), random_ids(60))
    mx.eval(expected)
    table_bytes = sum(x.nbytes for x in unmapped.model.embed_tokens_per_layer.values())
    del unmapped
    (folder / "tokenizer.json").write_text("{}")
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    weights, _ = load_weights(str(folder), with_tokenizer=False)
    model = serving_model("it", weights, page_size=16)
    actual = sequence_logits(model, random_ids(60))
    mx.eval(actual)
    assert mx.get_peak_memory() - before < 1.5 * table_bytes  # with the mapped arrays
    assert 0 < resident_bytes_of_file(folder / "model.safetensors") < table_bytes / 2
    assert_same_bits(actual, expected, "mapped")
