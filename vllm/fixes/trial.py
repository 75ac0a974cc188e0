# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A process that checks and compiles constraints, in limited time and memory.

`python -m vllm.fixes.trial BYTES` reads pickles: two configs, then constraints, each
with seconds. It answers each with what upstream's check made of it, or why that refuses
it, and ends with what it does not survive.
"""

import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def compile_for_bytes(constraint: Any) -> None:
    """Compiles a constraint that was checked, for a vocabulary of bytes."""
    from vllm.v1.structured_output.request import get_structured_output_key

    kind, text = get_structured_output_key(constraint)
    tokens = [bytes([i]) for i in range(256)]
    compilers: dict[str, Callable[[], Any]] = {}
    if constraint._backend == "outlines":
        import outlines_core
        from outlines_core.json_schema import build_regex_from_schema

        words = outlines_core.Vocabulary(256, {each: [each[0]] for each in tokens})
        compilers = {
            "JSON": lambda: outlines_core.Index(build_regex_from_schema(text), words),
            "REGEX": lambda: outlines_core.Index(text, words),
        }
    elif constraint._backend == "xgrammar":
        import xgrammar

        info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[0])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

        def compile_tag() -> None:
            if "structures" not in json.loads(text):
                compiler.compile_structural_tag(text)
                return
            for each in json.loads(text)["structures"]:
                compiler.compile_json_schema(json.dumps(each["schema"]))

        compilers = {
            "JSON": lambda: compiler.compile_json_schema(text),
            "REGEX": lambda: compiler.compile_regex(text),
            "GRAMMAR": lambda: compiler.compile_grammar(text),
            "STRUCTURAL_TAG": compile_tag,
        }
    compilers.get(kind.name, str)()


def main() -> None:
    """Answers until there is no more to read."""
    os.nice(10)
    orders, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)  # vLLM logs there
    from vllm.sampling_params import SamplingParams
    from vllm.tokenizers import cached_tokenizer_from_config

    model_config, outputs_config = pickle.load(orders)
    tokenizer = cached_tokenizer_from_config(model_config)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = int(sys.argv[1]) + pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    answer: Any = "ready"
    while True:
        answers.write(pickle.dumps(answer))
        try:
            constraint, seconds = pickle.load(orders)
        except EOFError:
            os._exit(0)  # there is nothing to tidy up
        signal.setitimer(signal.ITIMER_PROF, seconds)  # however busy the machine
        try:
            params = SamplingParams(structured_outputs=constraint)
            params.verify(model_config, None, outputs_config, tokenizer)
            answer = vars(constraint)
        except MemoryError:
            return
        except Exception as error:
            answer = str(error)
        else:
            try:
                compile_for_bytes(constraint)
            except MemoryError:
                return
            except Exception:
                pass  # the compiler of the rank will say so
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
