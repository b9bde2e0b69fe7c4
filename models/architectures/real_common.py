"""What exported models share: inputs, wrappers, and how transformers' classes are built."""

import torch
from transformers.cache_utils import DynamicCache


def ids(batch, length):
  """Token ids below 1000, the least vocabulary."""
  return torch.randint(3, 1000, (batch, length), generator=torch.Generator().manual_seed(1))


def ones(batch, length):
  """A mask of nothing."""
  return torch.ones((batch, length), dtype=torch.int64)


def noise(*shape):
  """Normal numbers."""
  return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def built(cls, config, attention="sdpa", **more):
  """A model of transformers with an attention of its own or torch's."""
  return cls._from_config(config, attn_implementation=attention, **more)


class First(torch.nn.Module):
  """The first output of a model that is called by names; ``many``: of what ``*args`` holds."""

  def __init__(self, model, *names, **fixed):
    super().__init__()
    self.model, self.names, self.fixed, self.many = model, names, fixed, len(names)

  def forward(self, *args):
    return self.model(**dict(zip(self.names, args, strict=True)), **self.fixed)[0]


class Pooled(torch.nn.Module):
  """A sentence embedding: the mean over what the mask holds, of length one."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids, attention_mask):
    states = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
    mask = attention_mask[..., None].to(states.dtype)
    mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
    return torch.nn.functional.normalize(mean, dim=-1)


class Prefill(torch.nn.Module):
  """Ids to logits of the last token and the cache."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids, attention_mask):
    out = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=True, logits_to_keep=1)
    return (out.logits, *cache_tensors(out.past_key_values))


class Decode(torch.nn.Module):
  """One token and the cache to logits and the longer cache; ``many``: tensors of the cache."""

  def __init__(self, model, many=0):
    super().__init__()
    self.model, self.many = model, many

  def forward(self, input_ids, attention_mask, position_ids, *past):
    cache = DynamicCache()
    for layer in range(len(past) // 2):
      cache.update(past[2 * layer], past[2 * layer + 1], layer)
    out = self.model(
      input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
      past_key_values=cache, use_cache=True,
    )  # fmt: skip
    return (out.logits, *cache_tensors(out.past_key_values))


def cache_tensors(cache):
  for layer in cache.layers:
    yield layer.keys
    yield layer.values


def cache(layers, heads, past, depth, batch=1):
  """The inputs of a cache, by name."""
  return {f"past_{i}": noise(batch, heads, past, depth) for i in range(2 * layers)}


def text_inputs(batch, length):
  """Ids and a mask."""
  return {"input_ids": ids(batch, length), "attention_mask": ones(batch, length)}


TEXT_LIMITS = {"input_ids": 1000, "attention_mask": 2}
#: Dynamic ids and mask, and the sizes at which they are checked.
TEXT_DYNAMIC = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}
