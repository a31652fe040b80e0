"""Tiny random models and data that the tests of all trainers share, and what they are compared with."""

import contextlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import default_collate
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from samphire.optim import SharpnessAware

VOCABULARY, LENGTH = 20, 6


def language_model(**settings):
    """A causal language model with tied embeddings and dropout."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **settings))
    model.loss_type = "ForCausalLM"  # the class name does not say it, and Trainer counts other tokens without
    return model


def classifier():
    """A text classifier with dropout and three classes."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(
        BertConfig(**sizes, intermediate_size=8, max_position_embeddings=8, num_labels=3)
    )


def sentences(n):
    """Texts with masked tokens, a different number in each."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (n, LENGTH), generator=draw)
    masked = torch.rand(n, LENGTH, generator=draw) < 0.3
    return [{"input_ids": i, "labels": i.masked_fill(m, -100)} for i, m in zip(ids, masked, strict=True)]


def labeled(n):
    """Texts with a class each."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (n, LENGTH), generator=draw)
    return [{"input_ids": ids[i], "labels": i % 3} for i in range(n)]


def windows(data, batch, accumulate):
    """The batches of each step, in order."""
    batches = [data[i : i + batch] for i in range(0, len(data), batch)]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def sharpness_aware_loop(
    model, base, rule, steps, *, micro="full", clip=None, before_step=None, after_step=None, **settings
):
    """The plain loop: ``steps`` are lists of functions, one for each batch, that run backward and return the loss."""
    opt = SharpnessAware(model, base, rule, **settings)
    opt.train()  # for a schedule-free base
    losses = []
    for i, batches in enumerate(steps):
        if before_step is not None:
            before_step(i)
        losses.append(0.0)
        for together in [batches] if micro == "full" else [[b] for b in batches]:
            for p in opt.passes():
                p.loss = sum(run(p) for run in together)
            losses[-1] += float(opt.last.loss)
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        opt.step()
        if after_step is not None:
            after_step()
    return losses, opt


def same(first, second):
    """Whether two models have the same weights and buffers, bit for bit."""
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def net():
    """A small network with BatchNorm and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def points(n):
    """Points with a class each."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=draw)
    return list(zip(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), strict=True))


def sgd(model):
    """The base optimizer of the tests on points."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def point_steps(model, data, batch, accumulate, autocast=None, divide=None):
    """The plain loop's functions for points: backward on each batch's share of the window's loss."""

    def run(rows, p):
        x, y = default_collate(rows)
        with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
            out = model(x)
        loss = cross_entropy(out.float(), y) / (divide or accumulate)
        (loss if p.scaler is None else p.scaler.scale(loss)).backward()
        return loss.detach()

    return [[lambda p, rows=rows: run(rows, p) for rows in window] for window in windows(data, batch, accumulate)]
