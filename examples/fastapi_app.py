"""Embed the engine in a FastAPI app that batches concurrent requests.

Usage:
    pip install 'tiny-llm[serve]'
    python examples/fastapi_app.py
    curl 'http://127.0.0.1:8000/ask?question=What+is+RoPE%3F'
"""

import argparse
import asyncio
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import FastAPI, HTTPException

from tiny_llm import LLM, SamplingParams, UserError


def make_app(model: str) -> FastAPI:
    """Creates an app with one endpoint; each engine step advances all requests in flight."""
    app = FastAPI()
    thread = ThreadPoolExecutor(max_workers=1)  # an `LLM` must be used from a single thread
    llm = thread.submit(LLM, model).result()
    answers: dict[str, str] = {}

    def step(request_id: str) -> bool:
        if request_id not in answers:  # an earlier step may have finished this request
            for output in llm.step():
                if output.finish_reason is not None:
                    answers[output.request_id] = output.request_output.text
        return request_id in answers

    @app.get("/ask")
    async def ask(question: str) -> dict[str, str]:
        run = asyncio.get_running_loop().run_in_executor
        chat = [{"role": "user", "content": question}]
        params = SamplingParams(temperature=0, max_tokens=100)
        try:
            request_id = await run(thread, llm.add_request, chat, params)
        except UserError as error:
            raise HTTPException(400, str(error)) from error
        while not await run(thread, step, request_id):
            pass
        return {"answer": answers.pop(request_id)}

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    uvicorn.run(make_app(args.model), port=args.port)
