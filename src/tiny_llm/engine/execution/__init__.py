"""Model execution: a ragged batch through the model, logits to tokens.

Must not know about queues or text.

Reading order: paged_model, tp_model, tp_worker, logits_processors, logprobs, sampler,
prompt_logprobs, async_scheduling.
"""
