"""Demo model pipeline: corpus, tokenizer, training, export, evaluation."""
