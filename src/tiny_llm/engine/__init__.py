"""The serving engine: continuous batching within a fixed KV memory.

`llm` is the public interface; `core` runs the steps. This package must not depend on HTTP.

Reading order: llm, engine_args, core, inputs, scheduling, execution, spec_decode, model_runner,
tool_calls, structured_output, outputs, factory.
"""
