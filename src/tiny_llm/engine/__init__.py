"""The serving engine: many requests at once, within a declared amount of memory.

Read it in this order. The files before `grammar_masks` are plain Python without MLX.

    checks              what callers give, checked
    chat_messages       the messages of a chat in the form that templates read
    structured_outputs  the form that an answer must have
    closed_schema       a JSON schema whose objects have no properties that it does not name
    sampling_params     how tokens are chosen, and when an answer ends
    config              the limits that the scheduler keeps to
    request             one answer on its way: its tokens and its pages
    page_allocator      pages of keys and values, by reference count
    prefix_cache        pages found again by the tokens in them
    page_manager        the pages of each request
    events              what happens, for the live view and recordings
    prompt_forms        a text, token ids or a chat, as token ids
    outputs             answers and news, as a caller gets them
    step                the chunks that are computed together, and their results
    scheduler           which tokens are computed next, and which requests are preempted
    stop_strings        tokens into text, up to a stop string
    text_length         whether a text can fit before it is made into tokens
    answer              from the scheduler's request to the caller's output
    answer_grammar      one grammar for a whole answer: thoughts, and then its body
    grammars            grammars compiled, and a copy for each answer
    try_grammar         a program that tests whether compiling a grammar terminates
    forced_tokens       guesses without a model: what a grammar forces
    repetition          guesses without a model: what followed the same tokens before
    grammar_masks       which tokens grammars allow, for all rows of a step
    thinking_budget     when the thoughts of an answer must end
    choose_tokens       logits into tokens
    choice              what is read of a step, sent before the step after it
    prompt_logprobs     how likely the model finds the prompt itself
    paged_model         tokens of many requests through a model at once
    draft_model         tokens that a small model guesses
    parallel_model      the model of rank 0, which tells the other ranks each step
    parallel_worker     another rank: does what it is told
    look_ahead          the next step, sent to a GPU before the tokens of this one are read
    runner              a step of the scheduler through the models; keeps the guesses that are right
    core                requests in, news of their answers out, a step at a time
    snapshot            who has which page, for the live view
    assemble            what an engine is made of, from what the caller of `LLM` says
    llm                 `LLM`, the interface
"""
