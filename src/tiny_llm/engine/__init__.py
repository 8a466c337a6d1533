"""The serving engine: many requests, one model, a declared budget of memory.

Read it in this order. Only the last three know MLX; the rest is plain Python.

    sampling_params   what a caller may ask for
    request           one answer on its way: which tokens it has, and who owns them
    page_allocator    pages of keys and values, by reference count
    prefix_cache      pages found again by the tokens in them
    page_manager      which request has which pages
    step              what is computed together, and what comes of it
    scheduler         which tokens are computed next
    events            what happened, for those who watch
    answer_text       tokens into text, up to a stop string
    sampling          logits into tokens
    speculative       tokens that a small model guesses
    runner            a step of the scheduler through the model
    llm               `LLM`: all of it together
"""
