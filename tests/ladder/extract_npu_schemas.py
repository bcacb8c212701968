"""Write ``npu_schemas.json``: the schemas of the torch_npu operators that ``ops/*/npu.py`` calls.

    python tests/ladder/extract_npu_schemas.py torch_npu-VERSION-....whl

They are read from the strings of ``libtorch_npu.so``, which hold the registered form; the YAML file in the
wheel does not (its generator renames ``self`` and folds out arguments).
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "torch_npu/lib/libtorch_npu.so"


def extract(wheel: Path, operators: set[str]) -> dict[str, str]:
    """operator -> schema. Raises KeyError for an operator that the library does not name."""
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(LIBRARY)
    names = "|".join(map(re.escape, sorted(operators)))
    found = re.findall(rf"\0(?:npu::)?(({names})\([\x20-\x7e]*\) -> [\x20-\x7e]+)\0".encode(), data)
    schemas = {name.decode(): schema.decode() for schema, name in found}
    missing = operators - set(schemas)
    if missing:
        raise KeyError(f"{wheel.name} has no {sorted(missing)}; choose other operators or another version")
    return dict(sorted(schemas.items()))


def main(wheel: Path) -> None:
    from ladder.npu_schema import operators_called

    content = {"torch_npu": wheel.name.split("-")[1], "schemas": extract(wheel, operators_called())}
    (HERE / "npu_schemas.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main(Path(sys.argv[1]))
