"""Ranks train the GPT-2 of transformers on two sentences each, as its own documentation does.

torchrun --nproc-per-node 2 language.py [--untied]
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

SENTENCES = (
    "the cat sat on a mat",
    "gradients tell words",
    "a model is no secret",
    "nobody reads losses!",
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GPT-2")
    parser.add_argument("--untied", action="store_true", help="an output layer of its own")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_embd=128,
        n_layer=2,
        n_head=4,
        n_positions=64,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=not args.untied,
    )
    model = DistributedDataParallel(GPT2LMHeadModel(config))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.tensor([list(text.encode()) for text in SENTENCES[2 * rank : 2 * rank + 2]])
    torch.save({"x": x}, f"kept{rank}.pt")
    for _ in range(2):
        optimiser.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimiser.step()
    dist.destroy_process_group()
