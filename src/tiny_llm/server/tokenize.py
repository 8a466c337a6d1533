"""`POST /tokenize` and `/detokenize`: texts and conversations into tokens, and back."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from .chat_types import ChatMessage, TemplateVariables, Tool, check_continued
from .documents import ERRORS
from .errors import JsonResponse, refused
from .prompts import Prompts
from .sampling import Body, TokenId
from .server import server_of

router = APIRouter()


class TokenizeBody(Body):
    """A text, or the messages of a chat, which go through the chat template."""

    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None  # by default, to a text and not to a chat
    add_generation_prompt: bool | None = None  # by default, unless a message is continued
    continue_final_message: bool = False
    chat_template_kwargs: TemplateVariables | None = None
    tools: list[Tool] | None = None
    return_token_strs: bool | None = None

    def encode(self, prompts: Prompts) -> list[int]:
        """The tokens.

        Raises:
            ApiError: there is neither a text nor a chat, or both.
        """
        if (self.prompt is None) == (self.messages is None):
            raise refused("Give either prompt or messages.", "prompt")
        if self.prompt is not None:
            return prompts.encode(self.prompt, self.add_special_tokens is not False)
        check_continued(self.continue_final_message, self.add_generation_prompt)
        messages = [one.for_template(number) for number, one in enumerate(self.messages or ())]
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        chosen = self.chat_template_kwargs or TemplateVariables()
        variables = chosen.model_dump(exclude_none=True)
        chat = prompts.chat(
            messages,
            tools,
            variables,
            self.add_generation_prompt is not False,
            self.continue_final_message,
            bool(self.add_special_tokens),
        )
        return chat.token_ids


class DetokenizeBody(Body):
    """Token ids."""

    tokens: Annotated[list[TokenId], Field(max_length=1_000_000)]
    model: str | None = None


@router.post("/tokenize", tags=["service"], responses=ERRORS)
async def tokenize(body: TokenizeBody, request: Request) -> dict[str, Any]:
    """The tokens of a text or a chat."""
    server = server_of(request)
    server.check_model(body.model)
    prompts = server.prompts
    ids = await prompts.run(body.encode, prompts)
    return {
        "tokens": ids,
        "token_strs": prompts.token_names(ids) if body.return_token_strs else None,
        "count": len(ids),
        "max_model_len": server.context,
    }


@router.post("/detokenize", tags=["service"], responses=ERRORS)
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of tokens."""
    server = server_of(request)
    server.check_model(body.model)
    prompts = server.prompts
    check_token_ids(server.bridge.loaded, body.tokens)
    return JsonResponse({"prompt": await prompts.run(prompts.decode, body.tokens)})


def check_token_ids(loaded: Any, tokens: list[int]) -> None:
    """Refuses tokens that the model does not have.

    Raises:
        ApiError: 400.
    """
    for token in tokens:
        if token >= loaded.vocab_size:
            raise refused(
                f"There is no token {token}; the model's are 0 to {loaded.vocab_size - 1}."
            )
