"""Request inputs: validation, and conversion to token ids and parameters.

Plain Python without MLX. This package must not depend on scheduling or models.

Reading order: limits, chat_template, prompts, structured_outputs, sampling_params.
"""
