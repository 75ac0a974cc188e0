"""What a drafter must draft, by Hugging Face's layers and without any cache."""

from functools import cache

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hugging_face import MARGIN
from vllm_balance.reference.tiny_models import Eagle3LlamaForCausalLM

DRAFTED_BY = ("mtp", "eagle3")


class Drafter:
    """Drafts after a text, from the target's hidden states."""

    def __init__(self, method, models):
        torch.set_num_threads(1)
        self._next = {"mtp": self._mtp, "eagle3": self._eagle3}[method]
        target = load(models / "deepseek", num_hidden_layers=3)
        *layers, self._layer = target.model.layers
        target.model.layers = torch.nn.ModuleList(layers)
        self._target = target.model
        self._rope = target.model.rotary_emb
        if method == "mtp":
            weights = load_file(models / "deepseek" / "model.safetensors")
            self._both = weights["model.layers.2.eh_proj.weight"]
            self._head = target.lm_head
        else:
            folder = models / "eagle3"
            head = Eagle3LlamaForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            )
            self._eagle, self._rope, self._head = head, head.rotary_emb, head.lm_head
        self.drafts = cache(self._drafts)

    @torch.no_grad()
    def _drafts(self, text, count):
        """Tokens that follow the text; up to one that is nearly a tie."""
        tokens = torch.tensor(text)
        output = self._target(tokens[None, :-1], output_hidden_states=True)
        mtp = self._next == self._mtp
        states = output.hidden_states[-1 if mtp else 1][0]
        if not mtp:
            states = self._eagle.fc(states)
        drafts: list[int] = []
        while len(drafts) < count:
            embedded = self._target.embed_tokens(tokens[1:])
            last = self._next(embedded, states)[-1:]
            states = torch.cat([states, last])
            logits = self._head(norm(last))[0]
            best, second = logits.topk(2).values
            if (best - second) / logits.std() < MARGIN:
                break
            drafts.append(int(logits.argmax()))
            tokens = torch.cat([tokens, logits.argmax()[None]])
        return drafts

    def _mtp(self, embedded, states):
        embedded[0] = 0  # as DeepSeek's: there is no token before the first
        both = torch.cat([norm(embedded), norm(states)], dim=1)
        arguments = self._where(len(both))
        return self._layer((both @ self._both.T)[None], **arguments)[0]

    def _eagle3(self, embedded, states):
        (layer,) = self._eagle.layers
        both = torch.cat([norm(embedded), norm(states)], dim=1)
        attended, _ = layer.self_attn(both[None], **self._where(len(both)))
        states = states + attended[0]
        return states + layer.mlp(norm(states))

    def _where(self, tokens):
        positions = torch.arange(tokens)[None]
        nothing = torch.zeros(1, tokens, 1)
        return {
            "position_ids": positions,
            "position_embeddings": self._rope(nothing, positions),
            "attention_mask": torch.full((tokens, tokens), float("-inf")).triu(1)[
                None, None
            ],
        }


def norm(states):
    """All weights of the tiny models' norms are 1."""
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6)


def load(folder, **arguments):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **arguments
    ).eval()
