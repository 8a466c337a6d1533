"""Tool-call formats of the model families.

Reading order: hermes, xml_values, qwen3_coder, llama3_json, mistral, gemma4, harmony.
"""
