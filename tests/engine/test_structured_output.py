"""Chat and structured output work through the OpenAI client."""

import re
from pathlib import Path

import openai

from balance_tools.serving.server import Server


def test_chat_and_structured_output(moe_model: Path, tmp_path: Path) -> None:
    with Server(tmp_path, moe_model) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

        def ask(**structured: object) -> str:
            answer = client.chat.completions.create(
                model=str(moe_model),
                messages=[{"role": "user", "content": "Do you agree?"}],
                max_tokens=16,
                temperature=0,
                extra_body={"structured_outputs": structured} if structured else {},
            )
            return answer.choices[0].message.content or ""

        free = ask()
        assert free
        assert not re.fullmatch("yes|no", free)
        assert ask(choice=["yes", "no"]) in ("yes", "no")
        assert re.fullmatch("[ab]{6}c", ask(regex="[ab]{6}c"))
