"""Request inputs, validated and converted to token ids and engine parameters.

Plain Python without MLX. Must not know about scheduling or models.

Reading order: validation, chat_messages, chat_template, length_check, prompts,
structured_outputs, sampling_params.
"""
