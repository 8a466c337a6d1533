"""Operations: service endpoints, engine view.

This package must not know how completions are generated.

Reading order: service, engine_view.
"""
