"""What a front-end's own checks say of bodies, each in a line of a file.

`python front_end_answers.py MODEL BODIES ANSWERS [stock]`: as its routes do, each body
is read, made into a request and into parameters, and these are checked. `stock` takes
out what the patches of `vllm.fixes` add. Ends where a body takes too long here.
"""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

MOST_S = 60
"""Seconds of a processor for one body, however busy the machine."""


def without_fixes():
    """Takes the checks of the patches out, before anything of vLLM imports them."""
    from vllm.fixes import bodies, client_checks, grammars, request_checks

    for module in (bodies, grammars, request_checks, client_checks):
        for name in vars(module):
            if name.startswith("check_"):
                setattr(module, name, lambda *_: None)
    grammars.was_checked = lambda _: False
    request_checks.without_media_options = lambda _, body: body


def main(model, bodies, answers, *stock):
    if stock:
        without_fixes()
    from fastapi import HTTPException
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.fixes import grammars
    from vllm.fixes.bodies import limit_bodies
    from vllm.v1.engine.input_processor import InputProcessor

    config = EngineArgs(model, max_model_len=2048, enforce_eager=True)
    processor = InputProcessor(config.create_engine_config())

    async def answer(body):
        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        read = []

        async def app(scope, receive, send):
            read.append((await receive())["body"])

        if stock:
            read.append(body)
        else:
            headers = [(b"content-type", b"application/json")]
            await limit_bodies(app)({"type": "http", "headers": headers}, receive, None)
        value = json.loads(read[0])
        kind = ChatCompletionRequest if "messages" in value else CompletionRequest
        params = kind.model_validate(value).to_sampling_params(16, {})
        if not stock:
            await grammars.check_beside(processor, params)
        params.verify(
            processor.model_config,
            None,
            processor.structured_outputs_config,
            processor.tokenizer,
        )

    grammars.WAIT_SECONDS = 3600  # others use this machine, too
    lines = Path(bodies).read_bytes().splitlines()
    with Path(answers).open("a+") as out:
        out.seek(0)
        begun = len(out.readlines())
        for line in lines[begun:]:
            signal.setitimer(signal.ITIMER_PROF, MOST_S)
            try:
                asyncio.run(answer(line))
                said = "taken"
            except HTTPException as error:
                said = f"refused: {error.detail}"
            except (ValueError, TypeError) as error:
                said = f"refused: {error}"
            except Exception as error:
                said = f"failed: {type(error).__name__}"
            print(json.dumps(said[:300]), file=out, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
