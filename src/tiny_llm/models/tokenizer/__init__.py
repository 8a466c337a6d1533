"""Tokenization, detokenization and chat templates.

Untrusted regular expressions and templates run in sandboxed processes.

Reading order: tokenizer, hf_fallback, tokenizer_json, low_memory_load, sandbox,
sandboxed_encode, sandboxed_encode_main, chat_template, chat_template_main.
"""
