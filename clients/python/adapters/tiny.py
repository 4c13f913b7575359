"""A model of a few thousand random weights with a tokenizer, as files: enough for trainers to load."""

from __future__ import annotations

from pathlib import Path


def model(folder: Path, weights: bool = True) -> Path:
    """Writes a Llama of two small layers with 300 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"w{n}": n for n in range(2, 300)}}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=512, pad_token_id=0, eos_token_id=1, bos_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    if weights:
        import torch
        from transformers import LlamaForCausalLM

        torch.manual_seed(7)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
