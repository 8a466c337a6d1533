"""The serving engine: many requests, one model, a declared budget of memory.

Read it in this order. What comes before `sampling` is plain Python without MLX.

    sampling_params   what a caller may ask for
    request           one answer on its way: which tokens it has, and who owns them
    page_allocator    pages of keys and values, by reference count
    prefix_cache      pages found again by the tokens in them
    page_manager      which request has which pages
    events            what happened, for those who watch
    step              what is computed together, and what comes of it
    scheduler         which tokens are computed next
    answer_text       tokens into text, up to a stop string
    prompts, outputs  what a caller gives, and gets back
    sampling          logits into tokens
    paged_model       tokens of many requests through a model at once
    draft_model       tokens that a small model guesses
    runner            a step of the scheduler through the models
    answer            one answer while it is being made
    core              requests in, news of their answers out, a step at a time
    llm               `LLM`: all of it, as its users see it
"""
