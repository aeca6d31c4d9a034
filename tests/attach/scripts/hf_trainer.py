"""Hugging Face's Trainer with a tiny GPT-2; checkpoints and evaluations every ten steps."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
tokens = torch.randint(100, (400, 32))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    output_dir=sys.argv[1] if len(sys.argv) > 1 else "trained", max_steps=400, per_device_train_batch_size=4,
    save_steps=10, save_total_limit=1, eval_strategy="steps", eval_steps=10, per_device_eval_batch_size=8,
    logging_steps=5, report_to=[], use_cpu=True, ddp_backend="gloo", gradient_accumulation_steps=2,
)  # fmt: skip
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2))
Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16]).train()
