"""A tiny model in ModelSlim's format of W8A8 or W4A8, and Hugging Face's with the same.

Weights have eight bits and a scale for each of their rows; tokens, too, when they meet
one. Not so embeddings, the head, routers, what drafts, and what MLA absorbs. With W4A8,
weights of experts have four bits.
"""

import json
import re
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file

QUANTISED = re.compile(r"\.layers\.(\d+)\..*(_proj|_a_proj_with_mqa)(\.weight)?$")
ABSORBED = "kv_b_proj"
DESCRIPTION = "quant_model_description.json"
SUFFIX = " in int"
"""Of names of models, before the bits of experts."""
SHARES = 16
"""Parts, for as many tensor parallel ranks, of what tokens of the second half miss."""
MARGIN = 0.05
"""Of scores, as `hugging_face.MARGIN`: what differs in the last bit of a float32 may be
rounded to another integer, and scores then differ by 0.022 and less."""


def is_quantised(name: str, layers: int) -> bool:
    """Of a weight by its name; layers behind the model's own draft."""
    found = QUANTISED.search(name)
    return bool(found) and ABSORBED not in name and int(found[1]) < layers


def quantised(x: torch.Tensor, bits: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers up to 127 (of eight bits), and the scale of each row."""
    scale = x.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return (x / scale).round(), scale


def quantise(folder: Path, bits: int) -> Path:
    """Make the quantised model beside that of a folder."""
    out = folder.with_name(f"{folder.name}-int{bits}")
    shutil.copytree(folder, out)
    layers = json.loads((out / "config.json").read_text())["num_hidden_layers"]
    weights, kinds = {}, {}
    for name, weight in load_file(out / "model.safetensors").items():
        parts, kind = {name: weight}, "FLOAT"
        if is_quantised(name, layers):
            own = bits if ".experts." in name else 8
            kind = f"W{own}A8_DYNAMIC"
            whole, scale = quantised(weight, own)
            parts = {name: whole.char(), f"{name}_scale": scale}
            parts[f"{name}_offset"] = torch.zeros_like(scale)
            if own == 4:
                even, odd = whole.char()[::2], whole.char()[1::2]
                parts[name] = even & 15 | odd << 4
                shares = (SHARES if "down" in name else 1, -1)
                missed = 8 * scale * whole.unflatten(1, shares).sum(-1)
                parts[f"{name.removesuffix('weight')}scale_bias"] = missed
        weights |= parts
        kinds |= dict.fromkeys(parts, kind)
    if bits == 4:
        kinds |= {"version": "1.0.0", "group_size": 0}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / DESCRIPTION).write_text(json.dumps(kinds))
    return out


class Weight(torch.Tensor):
    """A weight whose products with tokens are those of whole numbers, scaled."""

    bits = 8
    kind = torch.float32

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is not F.linear:
            return super().__torch_function__(function, types, args, kwargs)
        x, weight = args[0], args[1].as_subclass(torch.Tensor)
        (tokens, unit), (rows, scale) = quantised(x), quantised(weight, cls.bits)
        made = tokens.double() @ rows.double().T
        return (made * unit * scale.T).to(cls.kind).to(x.dtype)


class FirstHalf(Weight):
    """Of an expert, in four bits."""

    bits = 4


class SecondHalf(FirstHalf):
    """The plugin has what it makes in bfloat16, whatever the model's type."""

    kind = torch.bfloat16


def quantise_in_place(model: torch.nn.Module, bits: int) -> None:
    """Let a model of Hugging Face compute as the quantised one of `quantise` does."""
    model.set_experts_implementation("eager")  # by `linear`, one after the other
    layers = model.config.num_hidden_layers
    for name, parameter in list(model.named_parameters()):
        if is_quantised(name, layers):
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(parent)
            delattr(module, own)
            kind = Weight
            if bits == 4 and ".experts." in name:
                kind = SecondHalf if "down" in own else FirstHalf
            setattr(module, own, parameter.detach().as_subclass(kind))
