"""`POST /v1/embeddings` and `/v1/rerank`, for pooling models."""

import base64
import struct
import uuid
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ...engine.llm import POOLING_PARAMS
from ...models.heads.pooling import SCORE_INSTRUCTION, SCORE_TEMPLATE
from ..context import AppState, get_app_state
from ..http.errors import ApiError, JsonResponse, bad_request
from ..http.openapi import ERROR_RESPONSES
from ..protocol.base_schema import PromptIds, RequestBody, RequestModel
from ..protocol.request_fields import PositiveInt
from ..protocol.streaming import CancelOnDisconnect

MAX_INPUTS = 2048  # OpenAI's limit
GROUP_SIZE = 64  # maximum number of a request's prompts in the engine's queue

router = APIRouter()


class EmbeddingRequest(RequestBody):
    """Body of an embedding request."""

    input: (
        str
        | PromptIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
        | Annotated[list[PromptIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None

    def prompts(self) -> list[str | list[int]]:
        """The inputs as a list, even if only one was given."""
        given = self.input
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return list(given)


class RerankDocument(RequestModel):
    """A document, given as an object."""

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

    def texts(self) -> list[str]:
        """The documents' texts."""
        return [
            document if isinstance(document, str) else document.text for document in self.documents
        ]


@router.post("/v1/embeddings", tags=["OpenAI"], responses=ERROR_RESPONSES)
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Computes a unit-length embedding for each input."""
    server = get_app_state(request, body.model, "embed")
    lora = server.adapter_of(body.model)
    await server.wait_until_loaded(request)
    vectors, num_tokens = await _pool(server, request, body.prompts(), lora)
    if body.dimensions is not None and body.dimensions > len(vectors[0]):
        raise bad_request(
            f"dimensions must be at most {len(vectors[0])}, got {body.dimensions}.", "dimensions"
        )
    if body.dimensions is not None:
        vectors = [_shortened(vector, body.dimensions) for vector in vectors]
    as_base64 = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64_floats(vector) if as_base64 else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    model = lora or server.settings.model_name
    return JsonResponse({"object": "list", "data": data, "model": model, "usage": usage})


@router.post("/v1/rerank", tags=["OpenAI"], responses=ERROR_RESPONSES)
async def rerank(body: RerankRequest, request: Request) -> Response:
    """Scores documents by their relevance to a query, most relevant first."""
    server = get_app_state(request, body.model, "score")
    lora = server.adapter_of(body.model)
    await server.wait_until_loaded(request)
    texts, instruction = body.texts(), body.instruction or SCORE_INSTRUCTION
    prompts = [
        SCORE_TEMPLATE.format(instruction=instruction, query=body.query, document=text)
        for text in texts
    ]
    vectors, num_tokens = await _pool(server, request, prompts, lora)
    order = sorted(range(len(texts)), key=lambda index: -vectors[index][0])
    results = [
        {
            "index": index,
            "relevance_score": vectors[index][0],
            **({"document": {"text": texts[index]}} if body.return_documents else {}),
        }
        for index in order[: body.top_n]
    ]
    return JsonResponse(
        {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": lora or server.settings.model_name,
            "results": results,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
    )


async def _pool(
    server: AppState, request: Request, prompts: Sequence[str | list[int]], lora: str | None
) -> tuple[list[list[float]], int]:
    """Returns each prompt's embedding or score, and the number of prompt tokens."""
    encoded = await server.prompts.run(_encode, server, prompts)
    vectors: list[list[float]] = []
    for first in range(0, len(encoded), GROUP_SIZE):
        group_ids = encoded[first : first + GROUP_SIZE]
        handle = await server.submit(group_ids, POOLING_PARAMS, lora=lora)
        group: dict[int, list[float]] = {}
        with CancelOnDisconnect(request.receive, handle):
            async for outputs in handle.stream_outputs():
                for output in outputs:
                    group[handle.prompt_index[output.request_id]] = output.pooled or []
        if len(group) < len(handle.request_ids):
            raise ApiError(499, "The client has disconnected.")
        vectors += [group[index] for index in range(len(group))]
    return vectors, sum(map(len, encoded))


def _encode(server: AppState, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    return [
        server.prompts.encode(prompt, True) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]


def _shortened(vector: list[float], dimensions: int) -> list[float]:
    head = vector[:dimensions]
    norm = sum(x * x for x in head) ** 0.5 or 1.0
    return [x / norm for x in head]


def _base64_floats(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
