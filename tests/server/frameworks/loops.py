"""`python loops.py URL CASE…`: agents with two tool calls, then JSON output.

A case is FRAMEWORK:PROTOCOL:VARIANT. Prints one JSON line per case with the tool calls and the
output, or the error. Runs in the frameworks' virtual environment, so it cannot import tiny_llm.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

QUESTION = "Report the weather and the population of Paris."
WEATHER, POPULATION = "sunny, 21 °C", 2_100_000

calls: list[list[str]] = []


class Report(BaseModel):
    """A report about a city."""

    city: str
    weather: str
    population: int


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: name of the city.
    """
    calls.append(["get_weather", city])
    return WEATHER


def get_population(city: str) -> int:
    """Get the population of a city.

    Args:
        city: name of the city.
    """
    calls.append(["get_population", city])
    return POPULATION


def agents_sdk(url: str, protocol: str, variant: str) -> Report:
    """OpenAI Agents SDK, which sends tools and a response format together."""
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    models = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}
    agent = agents.Agent(
        name="reporter",
        instructions="Use the tools.",
        model=models[protocol](model="demo", openai_client=client),
        tools=[agents.function_tool(get_weather), agents.function_tool(get_population)],
        output_type=Report,
    )

    async def stream() -> Any:
        result = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
        return result.final_output

    if variant == "-streamed":
        return asyncio.run(stream())
    return agents.Runner.run_sync(agent, QUESTION).final_output


def pydantic_ai(url: str, protocol: str, variant: str) -> Report:
    """Pydantic AI. A variant is an output mode, with `-streamed` for streaming."""
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    mode, _, streamed = variant.partition("-")
    outputs = {"tool": ToolOutput, "native": NativeOutput, "prompted": PromptedOutput}
    model: Any
    if protocol == "messages":
        anthropic = AnthropicProvider(base_url=url, api_key="none")
        # Pydantic AI enables structured output only for the names of recent Claude models.
        model = AnthropicModel("claude-sonnet-4-5", provider=anthropic)
    else:
        models = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}
        model = models[protocol](
            "demo", provider=OpenAIProvider(base_url=url + "/v1", api_key="none")
        )
    agent = Agent(model, output_type=outputs[mode](Report), tools=[get_weather, get_population])

    async def stream() -> Any:
        async with agent.run_stream(QUESTION) as result:
            async for _ in result.stream_output():
                pass
            return await result.get_output()

    return asyncio.run(stream()) if streamed else agent.run_sync(QUESTION).output


def langchain(url: str, protocol: str, variant: str) -> Report:
    """LangChain's agent. The variant is the strategy for the response format."""
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    strategy, _, streamed = variant.partition("-")
    if protocol == "messages":
        model: Any = ChatAnthropic(base_url=url, api_key="none", model="demo", max_retries=0)
    else:
        model = ChatOpenAI(
            base_url=url + "/v1",
            api_key="none",
            model="demo",
            max_retries=0,
            use_responses_api=protocol == "responses",
        )
    response_format = {"tool": ToolStrategy, "native": ProviderStrategy}[strategy](Report)
    agent = create_agent(
        model, tools=[get_weather, get_population], response_format=response_format
    )
    question = {"messages": [{"role": "user", "content": QUESTION}]}
    if not streamed:
        return agent.invoke(question)["structured_response"]
    stream = agent.stream(question, stream_mode=["messages", "values"])
    *_, last = (state for mode, state in stream if mode == "values")
    return last["structured_response"]


def instructor(url: str, protocol: str, variant: str) -> Report:
    """Runs an agent loop with instructor, in which each tool is a response model."""
    import instructor as library
    from anthropic import Anthropic
    from openai import OpenAI

    class Weather(BaseModel):
        city: str

    class Population(BaseModel):
        city: str

    mode, _, streamed = variant.partition("-")
    mode = library.Mode[mode.upper()]
    if protocol == "messages":
        client: Any = library.from_anthropic(Anthropic(base_url=url, api_key="none"), mode=mode)
        options = {"model": "demo", "max_tokens": 500}
    else:
        openai = OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        client, options = library.from_openai(openai, mode=mode), {"model": "demo"}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for tool, run in ((Weather, get_weather), (Population, get_population)):
        arguments = client.create(response_model=tool, messages=messages, **options)
        messages.append({"role": "assistant", "content": arguments.model_dump_json()})
        messages.append({"role": "user", "content": f"{tool.__name__}: {run(arguments.city)}"})
    if streamed:
        *_, report = client.create_partial(response_model=Report, messages=messages, **options)
        return report
    return client.create(response_model=Report, messages=messages, **options)


def smolagents(url: str, protocol: str, variant: str) -> Report:
    """smolagents, whose agent loop ends with a call to `final_answer`."""
    from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

    kind, _, streamed = variant.partition("-")
    model = OpenAIModel("demo", api_base=url + "/v1", api_key="none")
    agent = {"tools": ToolCallingAgent, "code": CodeAgent}[kind](
        tools=[tool(get_weather), tool(get_population)],
        model=model,
        stream_outputs=bool(streamed),
        verbosity_level=LogLevel.OFF,
        max_steps=4,
    )
    answer = agent.run(QUESTION)
    return Report(**(json.loads(answer) if isinstance(answer, str) else answer))


LOOPS: dict[str, Callable[[str, str, str], Report]] = {
    "agents": agents_sdk,
    "pydantic_ai": pydantic_ai,
    "langchain": langchain,
    "instructor": instructor,
    "smolagents": smolagents,
}


def run(url: str, case: str) -> dict[str, Any]:
    calls.clear()
    framework, protocol, variant = case.split(":")
    try:
        return {"calls": calls, "answer": LOOPS[framework](url, protocol, variant).model_dump()}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    for name in sys.argv[2:]:
        # The leading newline ends any partial line that a framework has printed.
        print("\n" + json.dumps(run(sys.argv[1], name)), flush=True)
