"""Compares which texts back-ends of structured output allow by a JSON schema."""

import json
import re
import sys
import types

import tvm_ffi  # noqa: F401  before the stand-ins, for which it would look


class StandIn(types.ModuleType):
    """Any name is an empty class, since xgrammar's grammars need none of them."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None})


for module in ("torch", "transformers"):
    sys.modules[module] = StandIn(module)

import llguidance
import outlines_core
import xgrammar
from xgrammar.testing import _is_grammar_accept_string


class Bytes:
    """A tokenizer with one token for each byte: all that a test of texts needs."""

    eos_token_id, bos_token_id, unk_token_id = 256, None, None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def by_xgrammar(schema, text):
    try:
        grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema))
    except RuntimeError as error:  # a schema that it refuses lets nobody write anything
        print("   ", str(error).strip().partition(": ")[2])
        return False
    return _is_grammar_accept_string(grammar, text)


def by_llguidance(schema, text):
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matcher = llguidance.LLMatcher(TOKENIZER, grammar)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def by_outlines(schema, text):
    expression = outlines_core.json_schema.build_regex_from_schema(json.dumps(schema))
    return re.fullmatch(expression, text) is not None


ASK = {"X": by_xgrammar, "L": by_llguidance, "O": by_outlines}


def check(cases):
    """Print what each allows, and exit with 1 if that differs from earlier versions.

    A case is a schema, a text, and the letters of the back-ends that let a model write
    it: X for xgrammar, L for llguidance, O for outlines_core.
    """
    print("xgrammar 0.2.9, llguidance 1.9.1, outlines_core 0.2.14")
    changed, shown = False, None
    for schema, text, expected in cases:
        accepted = "".join(letter for letter, ask in ASK.items() if ask(schema, text))
        changed |= accepted != expected
        verdict = "" if accepted == expected else f"   CHANGED, before {expected}"
        if schema != shown:
            print(json.dumps(schema))
        shown = schema
        print(f"    {text:24} {accepted or 'none'}{verdict}")
    raise SystemExit(int(changed))
