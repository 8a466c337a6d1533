"""Tokenization, detokenization and chat templates, without `transformers`.

Reading order: loader, tokenizer, detokenizer, chat_template, draft_tokenizer.
"""
