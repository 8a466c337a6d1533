"""Constrain outputs to a JSON schema, a regular expression or choices.

Usage:
    pip install 'tiny-llm[structured]'
    python examples/structured_output.py
"""

import argparse
import json

from tiny_llm import LLM, SamplingParams, StructuredOutputs

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "country": {"type": "string"},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["city", "country", "continent"],
}


def main() -> None:
    """Prints one output for each of the three kinds of constraint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    args = parser.parse_args()

    llm = LLM(args.model)

    def ask(question: str, constraint: StructuredOutputs) -> str:
        params = SamplingParams(temperature=0, max_tokens=100, structured_outputs=constraint)
        return llm.generate([{"role": "user", "content": question}], params)[0].text

    city = json.loads(ask("Give me the capital of Japan as JSON.", StructuredOutputs(json=CITY)))
    print(f"schema: {city['city']} is in {city['country']}, {city['continent']}.")

    equation = StructuredOutputs(regex=r"[0-9]+ \+ [0-9]+ = [0-9]+")
    print(f"regex:  {ask('What is 17 + 25?', equation)}")

    cities = StructuredOutputs(choice=["Paris", "Rome", "Berlin"])
    print(f"choice: {ask('What is the capital of Italy?', cities)}")


if __name__ == "__main__":
    main()
