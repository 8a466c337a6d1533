"""`POST /tokenize` and `/detokenize`, as in vLLM."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ..http.errors import ERROR_RESPONSES, JsonResponse, bad_request
from ..models.requests import use_model
from ..protocol.prompts import PromptRenderer
from ..protocol.request_fields import BoundedList, JsonObject, RequestBody, ShortList, TokenIds
from .chat_schema import ChatMessage, Tool, check_continuation

router = APIRouter()


class TokenizeRequest(RequestBody):
    """Body of a tokenization request: either `prompt` or `messages`."""

    prompt: str | None = None
    messages: Annotated[BoundedList[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # default: true for text, false for chat
    add_generation_prompt: bool | None = None  # default: true unless continue_final_message
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject | None = None
    tools: ShortList[Tool] | None = None
    return_token_strs: bool | None = None

    def encode(self, prompts: PromptRenderer) -> list[int]:
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("Exactly one of prompt and messages must be given.", "prompt")
        if self.prompt is not None:
            return prompts.encode(self.prompt, self.add_special_tokens is not False)
        check_continuation(self.continue_final_message, self.add_generation_prompt)
        messages = [message.to_template(index) for index, message in enumerate(self.messages or ())]
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        chat = prompts.encode_chat(
            messages,
            tools,
            self.chat_template_kwargs or {},
            self.add_generation_prompt is not False,
            self.continue_final_message,
            bool(self.add_special_tokens),
        )
        return chat.token_ids


class DetokenizeRequest(RequestBody):
    tokens: TokenIds


@router.post("/tokenize", tags=["service"], responses=ERROR_RESPONSES)
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Tokenizes text, or a conversation rendered with the chat template."""
    model = await use_model(request, body)
    prompts = model.prompts
    body.chat_template_kwargs = prompts.used_template_kwargs(body.chat_template_kwargs)
    ids = await prompts.run(body.encode, prompts)
    return {
        "tokens": ids,
        "token_strs": prompts.token_strings(ids) if body.return_token_strs else None,
        "count": len(ids),
        "max_model_len": model.max_seq_len,
    }


@router.post("/detokenize", tags=["service"], responses=ERROR_RESPONSES)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Converts token ids to text."""
    model = await use_model(request, body)
    model.check_token_ids("the prompt", body.tokens)
    return JsonResponse({"prompt": await model.prompts.run(model.prompts.decode, body.tokens)})
