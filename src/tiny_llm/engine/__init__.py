"""The serving engine: continuous batching within a fixed KV memory.

`llm` is the public interface, `core` runs the steps. Must not know about HTTP.

Reading order: llm, core, inputs, scheduling, execution, spec_decode, tool_calls,
structured_output, model_runner, output_processor, factory.
"""
