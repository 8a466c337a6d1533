"""Tokenization, detokenization and chat templates.

Untrusted regular expressions and templates run in sandboxed processes.

Reading order: tokenizer, hf_fallback, tokenizer_json, low_memory_load, sandbox, sandbox_main,
sandboxed_encode, encode_handler, chat_template, chat_template_handler.
"""
