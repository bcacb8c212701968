"""What a process's loaded modules and classes hold, and what has changed since. Needs nothing but Python."""

from __future__ import annotations

import sys
from typing import Any

Snapshot = dict[tuple[str, str], Any]


def snapshot(*packages: str) -> Snapshot:
    """Every attribute of every loaded module of some packages, and of every class in them."""
    found: Snapshot = {}
    for name, module in list(sys.modules.items()):
        if module is None or name.split(".")[0] not in packages:
            continue
        for attribute, value in list(vars(module).items()):
            found[name, attribute] = value
            if isinstance(value, type) and value.__module__.split(".")[0] in packages:
                owner = f"{value.__module__}.{value.__qualname__}"
                found |= {(owner, key): each for key, each in vars(value).items()}
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What is another object now, or new."""
    return sorted(
        {".".join(key) for key, value in after.items() if key not in before or before[key] is not value}
    )
