"""A drafter of the user's own: ``model`` is its dotted path."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_spec.config.errors import Finding, wrong
from ascend_spec.config.speculator import SpeculatorConfig


def is_dotted_path(model: str | None) -> bool:
    """``package.module.Class``, and neither a file, a URL nor a name on a hub."""
    parts = (model or "").split(".")
    return len(parts) >= 2 and all(part.isidentifier() for part in parts)


class CustomClassConfig(SpeculatorConfig):
    method = "custom_class"
    speculator_class = "ascend_spec.drafters.custom:CustomDrafter"
    supported_options = frozenset({"speculator_options"})
    draft_distributions = ("one-hot", "sampled")

    def check(self) -> Iterator[Finding]:
        allowed = "the dotted path of a drafter class, like my_module.MyDrafter"
        if self.config.model is None:
            yield Finding("model", f"'model' is missing; it must be {allowed}. Add it.")
        elif not is_dotted_path(self.config.model):
            yield wrong("model", self.config.model, allowed)
