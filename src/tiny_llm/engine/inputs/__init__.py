"""Request inputs: validation, and conversion to token ids and parameters.

Plain Python without MLX. Must not know about scheduling or models.

Reading order: limits, chat_template, prompts, structured_outputs, sampling_params.
"""
