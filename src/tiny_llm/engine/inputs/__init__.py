"""Request inputs: validation, and conversion to token ids and parameters.

Plain Python without MLX. Must not know about scheduling or models.

Reading order: validation, json_limits, chat_messages, chat_template, length_check, prompts,
structured_outputs, sampling_params.
"""
