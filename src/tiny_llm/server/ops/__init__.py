"""Operations: health, metrics, tokenize, engine view.

This package must not know how completions are generated.

Reading order: health, tokenize, engine_view.
"""
