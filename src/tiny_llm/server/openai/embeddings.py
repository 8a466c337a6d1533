"""`POST /v1/embeddings` and `/v1/rerank`, for pooling models."""

import base64
import struct
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from ...engine.llm import POOLING_PARAMS
from ...models.output_heads import SCORE_INSTRUCTION, SCORE_TEMPLATE
from ..http.errors import (
    ERROR_RESPONSES,
    ApiError,
    JsonResponse,
    bad_request,
    request_id_headers,
    to_json,
)
from ..models.requests import use_model
from ..models.served_model import ServedModel
from ..protocol.request_fields import (
    PositiveInt,
    PromptIds,
    RequestBody,
    RequestModel,
    as_prompt_list,
)
from ..protocol.streaming import CancelOnDisconnect

MAX_INPUTS = 2048  # OpenAI's limit
GROUP_SIZE = 64  # maximum number of a request's prompts in the engine's queue

router = APIRouter()


class EmbeddingRequest(RequestBody):
    input: (
        str
        | PromptIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
        | Annotated[list[PromptIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None


class RerankDocument(RequestModel):
    text: str


class RerankRequest(RequestBody):
    """Body of a reranking request, in Jina's and Cohere's format."""

    query: str
    documents: Annotated[
        list[str | RerankDocument], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)
    ]
    top_n: PositiveInt | None = None
    return_documents: bool = True
    instruction: str | None = None


@router.post("/v1/embeddings", tags=["OpenAI"], responses=ERROR_RESPONSES)
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Computes a unit-length embedding for each input."""
    model = await use_model(request, body, "embed")
    info = model.engine_info
    if body.dimensions is not None and info is not None and body.dimensions > info.hidden_size:
        raise bad_request(
            f"dimensions must be at most {info.hidden_size}, got {body.dimensions}.", "dimensions"
        )
    parts, num_tokens = [b'{"object":"list","data":['], 0
    async for vectors, num_group_tokens in _pool(model, request, as_prompt_list(body.input), body):
        # In a worker, because a large vector takes milliseconds.
        first = GROUP_SIZE * (len(parts) - 1)
        parts.append(await model.prompts.run(_to_json_items, vectors, first, body))
        num_tokens += num_group_tokens
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    parts.append(b"]," + to_json({"model": model.name_of(body.model), "usage": usage})[1:])
    headers = {**request_id_headers(), "content-length": str(sum(map(len, parts)))}
    return StreamingResponse(_each(parts), headers=headers, media_type="application/json")


@router.post("/v2/rerank", include_in_schema=False)  # path of Cohere's clients
@router.post("/v1/rerank", tags=["OpenAI"], responses=ERROR_RESPONSES)
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Scores documents by their relevance to a query, most relevant first."""
    model = await use_model(request, body, "score")
    texts = [given if isinstance(given, str) else given.text for given in body.documents]
    instruction = body.instruction or SCORE_INSTRUCTION
    prompts = (
        SCORE_TEMPLATE.format(instruction=instruction, query=body.query, document=text)
        for text in texts
    )
    scores, num_tokens = [], 0
    async for vectors, num_group_tokens in _pool(model, request, prompts, body):
        scores += [score for [score] in vectors]
        num_tokens += num_group_tokens
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    results = [
        {
            "index": index,
            "relevance_score": scores[index],
            **({"document": {"text": texts[index]}} if body.return_documents else {}),
        }
        for index in order[: body.top_n]
    ]
    return JsonResponse(
        {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": model.name_of(body.model),
            "results": results,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
    )


async def _pool(
    model: ServedModel, request: Request, prompts: Iterable[str | list[int]], body: RequestBody
) -> AsyncIterator[tuple[list[Sequence[float]], int]]:
    """Yields each group's embeddings or scores, and its number of prompt tokens.

    Prompts are built and encoded in a worker, one group at a time, so that a request's memory does
    not grow with the product of its query and its documents.
    """
    rest = iter(prompts)
    while group_ids := await model.prompts.run(_encode, model, islice(rest, GROUP_SIZE)):
        stream = await model.submit(group_ids, POOLING_PARAMS, name=body.model)
        group: dict[int, Sequence[float]] = {}
        with CancelOnDisconnect(request.receive, stream):
            async for outputs in stream.batches():
                for output in outputs:
                    group[stream.prompt_index[output.request_id]] = output.pooled or ()
        if len(group) < len(stream.request_ids):
            raise ApiError(499, "The client has disconnected.")
        yield [group[index] for index in range(len(group))], stream.prompt_tokens


def _encode(model: ServedModel, prompts: Iterable[str | list[int]]) -> list[list[int]]:
    """Encodes prompts; rejects one that is too long before it encodes the next."""
    encoded = []
    for prompt in prompts:
        ids = model.prompts.encode(prompt, True) if isinstance(prompt, str) else prompt
        model.check_prompt(ids)
        encoded.append(ids)
    return encoded


async def _each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yields parts of a body; sending hundreds of megabytes at once would block the loop."""
    for part in parts:
        yield part


def _to_json_items(vectors: list[Sequence[float]], first: int, body: EmbeddingRequest) -> bytes:
    """Encodes embeddings as items of a JSON list; `first` is the first one's index."""
    items = []
    for index, vector in enumerate(vectors, first):
        if body.dimensions is not None:
            head = vector[: body.dimensions]
            norm = sum(x * x for x in head) ** 0.5 or 1.0
            vector = [x / norm for x in head]
        embedding: Sequence[float] | str = vector
        if body.encoding_format == "base64":
            embedding = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        items.append(to_json({"object": "embedding", "index": index, "embedding": embedding}))
    return (b"," if first else b"") + b",".join(items)
