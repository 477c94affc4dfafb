"""Transformers' implementation of a model family as the PyTorch baseline, for pytorch_step.py: the model of
configs/NAME.json, which precbench reads too."""
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIGS = pathlib.Path(__file__).resolve().parent / "configs"


def family_names():
    """Returns the models that configs/ has."""
    return sorted(path.stem for path in CONFIGS.glob("*.json"))


class Family(nn.Module):
    """A causal language model of Transformers with the interface of pytorch_model.Model."""

    def __init__(self, name, attention=None):
        """`name`: NAME, or NAME/LAYERS for the first blocks. `attention`: Transformers' name of an implementation; the
        default is sdpa, or flex_attention for gpt-oss, whose sinks sdpa lacks."""
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM
        name, _, layers = name.partition("/")
        config = AutoConfig.from_pretrained(CONFIGS / f"{name}.json")
        if layers:
            config.num_hidden_layers = int(layers)
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:int(layers)]
        config.use_cache = False
        attention = attention or ("flex_attention" if config.model_type == "gpt_oss" else "sdpa")
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.get_default_dtype(), attn_implementation=attention)

    @property
    def layers(self):
        return self.model.model.layers

    def forward(self, ids, targets):
        return self.loss(self.model.model(input_ids=ids).last_hidden_state, targets)

    def experts(self):
        return []  # Transformers' own experts stay in BF16 and route by their router

    def loss(self, x, targets):
        return F.cross_entropy(self.model.lm_head(x).float().flatten(0, 1), targets.flatten())
