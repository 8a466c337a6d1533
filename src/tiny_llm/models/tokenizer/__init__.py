"""Tokenization, detokenization and chat templates, without `transformers`.

Reading order: loader, think_tags, tokenizer, detokenizer, chat_template, draft_tokenizer.
"""
