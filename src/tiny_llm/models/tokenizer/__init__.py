"""Tokenization, detokenization and chat templates, without `transformers`.

Reading order: loader, tokenizer, chat_template.
"""
