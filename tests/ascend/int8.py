"""A tiny model in the format of ModelSlim's W8A8, and Hugging Face's with the same.

Weights have eight bits and a scale for each of their rows; tokens, too, when they meet
one. Not so embeddings, the head, routers, what drafts, and what MLA absorbs.
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
KIND = "W8A8_DYNAMIC"
SUFFIX = " in int8"
MARGIN = 0.05
"""Of scores, as `hugging_face.MARGIN`: what differs in the last bit of a float32 may be
rounded to another integer, and scores then differ by 0.022 and less."""


def is_quantised(name: str, layers: int) -> bool:
    """Of a weight by its name; layers behind the model's own draft."""
    found = QUANTISED.search(name)
    return bool(found) and ABSORBED not in name and int(found[1]) < layers


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers up to 127, and the scale of each row."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round(), scale


def quantise(folder: Path) -> Path:
    """Make the quantised model beside that of a folder."""
    out = folder.with_name(f"{folder.name}-int8")
    shutil.copytree(folder, out)
    layers = json.loads((out / "config.json").read_text())["num_hidden_layers"]
    weights, kinds = {}, {}
    for name, weight in load_file(out / "model.safetensors").items():
        parts = {name: weight}
        if is_quantised(name, layers):
            whole, scale = quantised(weight)
            parts = {name: whole.char(), f"{name}_scale": scale}
            parts[f"{name}_offset"] = torch.zeros_like(scale)
        weights |= parts
        kinds |= dict.fromkeys(parts, "FLOAT" if len(parts) == 1 else KIND)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / DESCRIPTION).write_text(json.dumps(kinds))
    return out


class Weight(torch.Tensor):
    """A weight whose products with tokens are those of whole numbers, scaled."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is not F.linear:
            return super().__torch_function__(function, types, args, kwargs)
        x, weight = args[0], args[1].as_subclass(torch.Tensor)
        (tokens, unit), (rows, scale) = map(quantised, (x.float(), weight.float()))
        made = tokens.double() @ rows.double().T
        return (made * unit * scale.T).to(x.dtype)


def quantise_in_place(model: torch.nn.Module) -> None:
    """Let a model of Hugging Face compute as the quantised one of `quantise` does."""
    model.set_experts_implementation("eager")  # by `linear`, one after the other
    layers = model.config.num_hidden_layers
    for name, parameter in list(model.named_parameters()):
        if is_quantised(name, layers):
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(parent)
            delattr(module, own)
            setattr(module, own, parameter.detach().as_subclass(Weight))
