"""Writes a vision model of two million random weights (Qwen2-VL's shape) with a tokenizer and a chat template into a new folder: for
tests that need a server which takes images, but no sense."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2TokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for part in message['content'] %}{% if part['type'] in ('image', 'image_url') %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

out = Path(sys.argv[1])
out.mkdir(parents=True)

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: index for index, letter in enumerate(alphabet)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(SPECIAL)
fast = Qwen2TokenizerFast(
    tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None,
    additional_special_tokens=SPECIAL[1:],
)
fast.chat_template = TEMPLATE
fast.save_pretrained(out)
ids = {text: fast.convert_tokens_to_ids(text) for text in SPECIAL}

config = Qwen2VLConfig(
    text_config={
        "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": len(fast), "max_position_embeddings": 8192, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
    },
    vision_config={
        "depth": 2, "embed_dim": 128, "num_heads": 2, "hidden_size": 256, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
    },
    image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"], vision_start_token_id=ids["<|vision_start|>"],
    vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=True,
)  # fmt: skip
torch.manual_seed(0)
model = Qwen2VLForConditionalGeneration(config).to(torch.bfloat16)
with torch.no_grad():
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.normal_(0, 0.06)
model.save_pretrained(out)
processor = {
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "min_pixels": 56 * 56,
    "max_pixels": 28 * 28 * 64, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
(out / "preprocessor_config.json").write_text(json.dumps(processor))
(out / "generation_config.json").write_text(json.dumps({"eos_token_id": ids["<|im_end|>"]}))
(out / "chat_template.jinja").write_text(TEMPLATE)
