# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Checks and compiles constraints in processes of limited time and memory.

`main`, with bytes as its argument, gets two configs over the socket at its input, then
a socket for each constraint. A fork answers there with what upstream's check made of
the constraint, or why that refuses it, and ends with what it does not survive.
"""

import fcntl
import os
import pickle
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import get_structured_output_key


def compile_for_bytes(constraint: Any) -> None:
    """Compiles a constraint that was checked, for a vocabulary of bytes."""
    kind, text = get_structured_output_key(constraint)
    tokens = [bytes([i]) for i in range(256)]
    if constraint._backend == "outlines":
        import outlines_core
        from outlines_core.json_schema import build_regex_from_schema

        words = outlines_core.Vocabulary(256, {each: [each[0]] for each in tokens})
        regex = build_regex_from_schema(text) if kind.name == "JSON" else text
        outlines_core.Index(regex, words)
    elif constraint._backend == "xgrammar":
        import xgrammar

        info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[0])
        backend: Any = object.__new__(XgrammarBackend)  # which takes real tokenizers
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        backend.compiler = backend.full_vocab_compiler = compiler
        backend.vocab_size, backend.num_speculative_tokens = 256, 0
        backend.disable_any_whitespace = False
        backend.compile_grammar(kind, text)


def _answer(constraint: Any, configs: Any, tokenizer: Any) -> Any:
    answer: Any = None
    try:
        params = SamplingParams(structured_outputs=constraint)
        params.verify(configs[0], None, configs[1], tokenizer)
        answer = vars(constraint)
        compile_for_bytes(constraint)
    except MemoryError:
        os._exit(1)
    except Exception as error:  # if of compiling, then the rank says it
        answer = answer or str(error)
    return answer


def main() -> None:
    """Forks for each socket, until there are no more."""
    os.nice(10)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    control = socket.socket(fileno=0)
    configs = pickle.load(control.makefile("rb"))
    tokenizer = cached_tokenizer_from_config(configs[0])
    _answer(StructuredOutputsParams(regex="a"), configs, tokenizer)  # imports the rest
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = int(sys.argv[1]) + pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    control.send(b"ready")
    while links := socket.recv_fds(control, 1, 1)[1]:
        with socket.socket(fileno=links[0]) as link:
            if os.fork():
                continue
            try:
                constraint, seconds = pickle.load(link.makefile("rb"))
                fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
                fcntl.fcntl(link, fcntl.F_SETFL, os.O_ASYNC)  # ends with who asked
                if not select.select([link], [], [], 0)[0]:
                    signal.setitimer(signal.ITIMER_PROF, seconds)  # however busy all is
                    link.sendall(pickle.dumps(_answer(constraint, configs, tokenizer)))
            finally:
                os._exit(0)
    os._exit(0)  # there is nothing to tidy up, which takes seconds on a busy machine
