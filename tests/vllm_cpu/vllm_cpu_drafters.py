"""Drafters for vLLM's method ``custom_class``: one that is always right, one from the text, one always wrong."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

#: environment variable with the path of a JSON list of token sequences, prompts included
KNOWN_TEXTS = "VLLM_CPU_TEST_KNOWN_TEXTS"


class _Drafter:
    """vLLM's contract: constructed with its config, told to load, asked once a step."""

    def __init__(self, vllm_config: Any) -> None:
        self.k = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        self.vocab_size = vllm_config.model_config.get_vocab_size()

    def load_model(self, target_model: Any) -> None:
        """There is none."""

    def draft(self, history: np.ndarray) -> list[int]:
        raise NotImplementedError

    def propose(
        self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None
    ) -> list[list[int]]:
        drafts = []
        for i, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[i])
            room = min(self.k, self.max_model_len - length - 1) if sampled else 0
            drafts.append(self.draft(token_ids_cpu[i, :length])[: max(0, room)])
        return drafts


class Oracle(_Drafter):
    """Knows the texts."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        with open(os.environ[KNOWN_TEXTS]) as file:
            self.texts = [np.array(text) for text in json.load(file)]

    def draft(self, history: np.ndarray) -> list[int]:
        n = len(history)
        for text in self.texts:
            if len(text) > n and (text[:n] == history).all():
                return text[n : n + self.k].tolist()
        return []


class Lookup(_Drafter):
    """What followed the last token when it occurred last."""

    def draft(self, history: np.ndarray) -> list[int]:
        places = np.flatnonzero(history[:-1] == history[-1])
        return history[places[-1] + 1 :][: self.k].tolist() if places.size else []


class Wrong(Oracle):
    """Anything but what the texts say, of ragged lengths."""

    def draft(self, history: np.ndarray) -> list[int]:
        right = super().draft(history)
        return [
            (token + 1 + i) % self.vocab_size for i, token in enumerate(right[: 1 + len(history) % self.k])
        ]
