"""How the demo model is made: corpus, tokenizer, training, export, evaluation."""
