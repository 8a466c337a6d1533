"""Mistakes of Week 3, days 3 and 4: the engine, and speculative decoding."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "3.3.1 reference",
        "the mask as if each began the batch",
        "query[ends[s] : ends[s + 1]]",
        "query[: ends[s + 1]][-(ends[1] - ends[0]) :]",
    ),
    Wrong(
        "3.3.1 reference",
        "everyone has the first one's pages",
        "block_table[s]",
        "block_table[0]",
    ),
    Wrong(
        "3.3.1 ragged",
        "values are keys",
        "kernels.paged_cache_write(buffers[values], value, slots, overwrite=True)",
        "kernels.paged_cache_write(buffers[values], key, slots, overwrite=True)",
    ),
    Wrong(
        "3.3.1 ragged",
        "every layer writes the first one's pages",
        "buffers[keys] = kernels.paged_cache_write(buffers[keys], key, slots, overwrite=True)",
        "buffers[0] = kernels.paged_cache_write(buffers[0], key, slots, overwrite=True)",
    ),
    Wrong(
        "3.3.1 attend",
        "heads and tokens are not swapped back",
        "attended.swapaxes(0, 1)[None]",
        "attended.reshape(attended.shape[1], attended.shape[0], -1)[None]",
    ),
    Wrong(
        "3.3.2 allocate",
        "takes what there is before it fails",
        "if count > len(self._free):",
        "if count > len(self._free) and not self._free.clear():",
    ),
    Wrong(
        "3.3.2 free-page",
        "free while somebody reads it",
        "if self._ref_counts[page] == 0:",
        "if self._ref_counts[page] >= 0:",
    ),
    Wrong("3.3.2 free-page", "the page leaks", "self._free.append(page)", "pass"),
    Wrong(
        "3.3.2 pages",
        "no pages in reserve for those that run",
        "needed + reserve > self.num_available",
        "needed > self.num_available",
    ),
    Wrong(
        "3.3.2 pages",
        "pages for the prompt without its last token",
        "self.pages_for(request.num_tokens)",
        "self.pages_for(request.num_tokens - 1)",
    ),
    Wrong(
        "3.3.2 fits",
        "a request that can never fit is let in",
        "if request.max_tokens is not None and request.max_tokens > room:",
        "if request.max_tokens is not None and request.max_tokens > 2 * room:",
    ),
    Wrong(
        "3.3.2 schedule",
        "decoding does not count for the budget",
        "budget -= sum(chunk.num_tokens for chunk in chunks)",
        "pass",
    ),
    Wrong(
        "3.3.2 schedule",
        "prompts wait until nobody decodes",
        "if budget > 0 and request.num_uncomputed > 1:",
        "if budget > 0 and request.num_uncomputed > 1 and not chunks:",
    ),
    Wrong(
        "3.3.2 prefill",
        "the budget is ignored for prefill",
        "min(request.num_tokens, request.num_computed + budget)",
        "request.num_tokens",
    ),
    Wrong(
        "3.3.2 admission",
        "the queue is jumped by the shortest",
        "request = self.waiting[0]",
        "self.waiting = deque(sorted(self.waiting, key=lambda one: one.num_tokens))\n"
        "        request = self.waiting[0]",
    ),
    Wrong(
        "3.3.2 admission",
        "one more than may run",
        "len(self.running) >= self.config.max_num_seqs",
        "len(self.running) > self.config.max_num_seqs",
    ),
    Wrong(
        "3.3.3 match",
        "a hit covers the whole prompt",
        "(len(token_ids) - 1) // size * size",
        "len(token_ids) // size * size",
    ),
    Wrong(
        "3.3.3 match",
        "a page is found whatever came before it",
        "node = child",
        "pass",
    ),
    Wrong(
        "3.3.3 acquire",
        "a page that is read may be evicted",
        "self._unused.pop(node, None)",
        "pass",
    ),
    Wrong(
        "3.3.3 acquire",
        "a page is shared without a reference",
        "self._allocator.share(node.page)",
        "pass",
    ),
    Wrong(
        "3.3.3 insert",
        "the same tokens twice in the tree",
        "if known is not None:",
        "if known is not None and known.page == page:",
    ),
    Wrong(
        "3.3.3 insert",
        "the second's page is not freed",
        "self._allocator.free(page)",
        "pass",
    ),
    Wrong(
        "3.3.3 release",
        "a page in use may be evicted",
        "if self._allocator.ref_count(node.page) == 1:",
        "if self._allocator.ref_count(node.page) >= 1:",
    ),
    Wrong(
        "3.3.3 release",
        "only the last page is given back",
        "node = node.parent",
        "break",
    ),
    Wrong(
        "3.3.3 evict",
        "the latest used goes first",
        "popitem(last=False)",
        "popitem(last=True)",
    ),
    Wrong(
        "3.3.3 evict",
        "an evicted page is still found",
        "del node.parent.children[node.tokens]",
        "pass",
    ),
    Wrong(
        "3.3.4 room",
        "the oldest gives its pages",
        "youngest = self.running[-1]",
        "youngest = self.running[0]",
    ),
    Wrong(
        "3.3.4 room",
        "a request that preempted itself goes on",
        "if youngest is request:",
        "if youngest is request and not self.running:",
    ),
    Wrong(
        "3.3.4 preempt",
        "back to the end of the queue",
        "self.waiting.appendleft(request)",
        "self.waiting.append(request)",
    ),
    Wrong(
        "3.3.4 preempt",
        "its answer so far is lost",
        "self.pages.release(request)",
        "self.pages.release(request)\n        del request.token_ids[request.num_prompt_tokens :]",
    ),
    Wrong(
        "3.3.4 preempt",
        "its pages leak",
        "self.pages.release(request)",
        "del request.page_ids[:]\n        request.num_computed = 0",
    ),
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
