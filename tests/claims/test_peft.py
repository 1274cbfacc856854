"""Adapters beside those of the library peft itself, on a network of the library transformers."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
#: Without torch, which the environment of the tests has.
PACKAGES = (
    "peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 huggingface_hub==2.4.0 regex==2026.11.19 safetensors==0.8.0 "
    "tokenizers==0.23.3 hf-xet==1.8.0 httpx2==2.16.2 httpcore2==2.16.2 truststore==0.10.5 --no-deps"
)
#: Of the same weights and texts: the gradients of peft's adapters, of ours on the same linear layers, and of ours on
#: PyTorch's attention, at the first step and where B is not zero. And what peft trains by default.
SCRIPT = """
import harness, json, sys, torch
from copy import deepcopy
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel
from harness.base.words import images_of
from harness.models.adapters import RANK, adapters
from harness.models.text_transformer import _LAYER, MiniLM

torch.manual_seed(0)
config = BertConfig(
    vocab_size=50, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
    max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert, self.head = BertModel(config, add_pooling_layer=False), nn.Linear(384, 3)

    def forward(self, tokens):
        there = (tokens != 0).float()
        hidden = self.bert(input_ids=tokens, attention_mask=there).last_hidden_state * there[..., None]
        return self.head(hidden.sum(1) / there.sum(1, keepdim=True))

plain = Network()
theirs = inject_adapter_in_model(LoraConfig(r=4, lora_alpha=12, target_modules=["query", "value"]), deepcopy(plain))
theirs.head.requires_grad_(True)
linear = adapters(deepcopy(plain), 4, 12.0)

attention, state = MiniLM(50, 12), plain.bert.state_dict()
own = {"head.weight": plain.head.weight, "head.bias": plain.head.bias}
own["words.weight"] = state["embeddings.word_embeddings.weight"]
own["places"] = state["embeddings.position_embeddings.weight"][None]
own["sentence"] = state["embeddings.token_type_embeddings.weight"][None, :1]
for kind in ("weight", "bias"):
    own[f"norm.{kind}"] = state[f"embeddings.LayerNorm.{kind}"]
    for layer in range(6):
        their, ours = f"encoder.layer.{layer}", f"encoder.{layer}"
        three = [state[f"{their}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
        own[f"{ours}.self_attn.in_proj_{kind}"] = torch.cat(three)
        own |= {f"{ours}.{new}.{kind}": state[f"{their}.{old}.{kind}"] for new, old in _LAYER.items()}
attention.head = nn.Linear(384, 3)
attention.load_state_dict(own)
adapters(attention, 4, 12.0)

def adapter_of(network, layer, part):
    if network is attention:
        return getattr(network.encoder[layer].self_attn, part)
    return getattr(network.bert.encoder.layer[layer].attention.self, part)

def pairs(network):
    for layer in range(6):
        for part in ("query", "value"):
            one = adapter_of(network, layer, part)
            if network is theirs:
                yield one.lora_A["default"].weight, one.lora_B["default"].weight
            else:
                one = getattr(one, "adapter", one)
                yield one.a.weight, one.b.weight

tokens = torch.randint(1, 50, (3, 12))
tokens[1, 7:], labels = 0, torch.tensor([0, 1, 2])

def gradients(network):
    given = images_of(tokens) if network is attention else tokens
    loss = nn.functional.cross_entropy(network(given), labels)
    asked = [*(one for pair in pairs(network) for one in pair), network.head.weight, network.head.bias]
    return torch.autograd.grad(loss, asked)

off, zero = {}, []
for step in ("first", "later"):
    for network in (linear, attention):
        for copy, original in zip(pairs(network), pairs(theirs), strict=True):
            for one, other in zip(copy, original, strict=True):
                one.data.copy_(other.data)
    right = gradients(theirs)
    zero.append(all(not one.any() for one in right[:-2:2]))
    for name, network in (("linear", linear), ("attention", attention)):
        found = gradients(network)
        share = [float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(found, right, strict=True)]
        off[f"{name}, {step}"] = max(share)
    for _, b in pairs(theirs):
        b.data.normal_(std=0.02)

usual = get_peft_model(BertForSequenceClassification(config), LoraConfig(task_type="SEQ_CLS"))
kinds = {"lora_A": "A", "lora_B": "B", "classifier": "head"}
trained = [name for name, one in usual.named_parameters() if one.requires_grad]
said = sorted({next((k for p, k in kinds.items() if p in n), n) + " of " + n.split(".")[-4 if "lora" in n else -1]
               for n in trained if "lora" in n} | {"head" for n in trained if "classifier" in n})
ours = sorted(name for name, one in attention.named_parameters() if one.requires_grad)
print(json.dumps({"off": off, "zero": zero, "trained": said, "unknown": [n for n in trained if "lora" not in n and
      "classifier" not in n], "rank": [usual.peft_config["default"].r, RANK], "ours": ours}))
"""


def test_adapters_have_the_gradients_of_peft(python_with: Callable[[str], Path], tmp_path: Path) -> None:
    script = tmp_path / "compare.py"
    script.write_text(SCRIPT)
    made = subprocess.run([python_with(PACKAGES), script], check=True, timeout=900, capture_output=True, text=True)
    found = json.loads(made.stdout.splitlines()[-1])
    assert len(found["off"]) == 4 and max(found["off"].values()) < 1e-5, found["off"]
    assert found["zero"] == [True, False]  # of A, at the first step alone
    # By default peft trains what is trained here: A and B of queries and values, and the head; its rank is ours.
    assert found["trained"] == ["A of query", "A of value", "B of query", "B of value", "head"]
    assert not found["unknown"] and found["rank"][0] == found["rank"][1]
    kinds = {name.split(".", 2)[2] for name in found["ours"] if name.startswith("encoder")}
    assert kinds == {f"self_attn.{part}.{one}.weight" for part in ("query", "value") for one in "ab"}
    assert {name for name in found["ours"] if not name.startswith("encoder")} == {"head.weight", "head.bias"}


NETWORK = """
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

class Network(nn.Module):
    def __init__(self, vocabulary, places, classes):
        super().__init__()
        config = BertConfig(
            vocab_size=vocabulary, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
            max_position_embeddings=places, num_labels=classes, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, attn_implementation="eager",
        )
        self.model = get_peft_model(BertForSequenceClassification(config), LoraConfig(task_type="SEQ_CLS", r=48))

    def forward(self, tokens):
        return self.model(input_ids=tokens, attention_mask=(tokens != 0).long()).logits
"""


def test_span_reads_the_adapters_of_peft_in_a_network_of_ones_own(
    python_with: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "peft_network.py").write_text(NETWORK)
    line = "evaluate --defense none --attack span --dataset notes --model peft_network:Network --victims 4 --surface 2"
    command = [python_with(PACKAGES), "-m", "harness", *line.split(), "--no-pictures", "--json"]
    made = subprocess.run(command, check=True, timeout=900, capture_output=True, text=True, cwd=tmp_path)
    (cell,) = (one for one in json.loads(made.stdout)["cells"] if one["role"] == "cell")
    assert cell["asr"]["strict"]["successes"] == 4
    assert cell["metrics"]["most_tokens"]["mean"] == 47
