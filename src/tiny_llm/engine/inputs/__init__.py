"""Request inputs: validation, and conversion to token ids and parameters.

Plain Python without MLX. This package must not depend on scheduling or models.

Reading order: options, limits, fit_messages, chat_template, prompts, sampling_params.
"""
