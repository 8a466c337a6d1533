"""Mistakes of Week 3."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "3.4.1 matching",
        "a draft is kept after a wrong one",
        "if guess != choice:",
        "if guess != choice and accepted == 0:",
    ),
    Wrong(
        "3.4.1 matching",
        "the target's own token is thrown away",
        "return len(guesses), next(choices)",
        "return len(guesses), guesses[-1] if guesses else next(choices)",
    ),
    Wrong(
        "3.4.1 keep", "rejected tokens stay in the cache", "if surplus > 0:", "if surplus > 10**9:"
    ),
    Wrong(
        "3.4.1 keep",
        "one token too many is forgotten",
        "layer.rewind(surplus)",
        "layer.rewind(surplus + 1)",
    ),
    Wrong(
        "3.4.1 loop",
        "accepted drafts are forgotten",
        "ids += [*guesses[:accepted], token]",
        "ids += [token]",
    ),
    Wrong(
        "3.4.1 propose",
        "every guess is the first",
        "new_ids = likeliest(logits)",
        "new_ids = guesses[1] if len(guesses) > 1 else likeliest(logits)",
    ),
    Wrong(
        "3.4.2",
        "drafts are accepted when p > q",
        "sampler.uniform(n) * q_of_draft < p_of_draft",
        "q_of_draft < p_of_draft",
    ),
    Wrong(
        "3.4.2",
        "the replacement is drawn from p",
        "mx.maximum(wanted[accepted] - q[accepted], 0)",
        "wanted[accepted]",
    ),
    Wrong(
        "3.4.2",
        "later drafts are counted after a rejection",
        "mx.cumprod(passed.astype(mx.int32)).sum()",
        "passed.astype(mx.int32).sum()",
    ),
]
