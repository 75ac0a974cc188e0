"""What the checks of a request refuse, asked with lowered limits."""

import json
from types import SimpleNamespace

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.fixes import client_checks
from vllm.fixes.client_checks import check_client, drop_unknown_ends
from vllm.sampling_params import SamplingParams

TOKENS = SimpleNamespace(get_vocab_size=lambda: 10)
"""A model of ten tokens."""


def params(constraint=None, **said):
    """Params as a client has sent them, with a constraint that nothing looked at."""
    found = SamplingParams(**said)
    found.structured_outputs = constraint
    return found


def constraint(**said):
    nothing = dict.fromkeys(("json", "json_object", "structural_tag"))
    return SimpleNamespace(**nothing | said)


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token", [-1, 10])
def test_ids_that_the_model_does_not_have_are_refused(name, token):
    check_client(params(**{name: [0, 9]}), TOKENS)
    with pytest.raises(VLLMValidationError, match=f"{name} has ids .* 0 to 9"):
        check_client(params(**{name: [0, token]}), TOKENS)


def test_an_end_that_the_model_does_not_have_is_no_end():
    ends = {"eos_token_id": [9, 10]}
    drop_unknown_ends(ends, TOKENS)
    assert ends == {"eos_token_id": [9]}
    for end, refused in ((9, False), (10, True)):
        tokenizer = SimpleNamespace(eos_token_id=end)
        check_client(params(), TOKENS, tokenizer)
        if refused:
            with pytest.raises(VLLMValidationError, match="min_tokens cannot be kept"):
                check_client(params(min_tokens=2), TOKENS, tokenizer)
        else:
            check_client(params(min_tokens=2), TOKENS, tokenizer)


@pytest.mark.parametrize("nothing", [{"json_object": False}, {"json": ""}])
def test_structured_output_that_asks_for_nothing_is_refused(nothing):
    check_client(params(constraint(json_object=True)), TOKENS)
    with pytest.raises(VLLMValidationError, match="has no constraint"):
        check_client(params(constraint(**nothing)), TOKENS)


def test_a_schema_of_more_levels_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(client_checks, "MOST_LEVELS", 2)
    two, three = {"items": {"title": "[[["}}, {"items": {"items": {}}}
    for form in (lambda schema: schema, json.dumps):
        check_client(params(constraint(json=form(two))), TOKENS)
        with pytest.raises(VLLMValidationError, match="deeper than 2 levels"):
            check_client(params(constraint(json=form(three))), TOKENS)
    with pytest.raises(VLLMValidationError, match="structural_tag is nested"):
        check_client(params(constraint(structural_tag=json.dumps(three))), TOKENS)
