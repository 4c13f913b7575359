"""Writes a Llama of six million random weights with the tokenizer of another model into a new folder: for tests that need a model that is
trained and served like a real one, but no sense."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

of, out = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(of)
theirs = json.loads((of / "config.json").read_text())
config = LlamaConfig(
    hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    max_position_embeddings=8192, **{key: theirs[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")},
)  # fmt: skip
torch.manual_seed(0)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
tokenizer.save_pretrained(out)
