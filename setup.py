"""The one thing pyproject.toml cannot say: every package under ``ops/`` is called ``ascend_spec_ops``."""

from setuptools import find_packages, setup

setup(
    package_dir={"ascend_spec_ops": "ops"},
    packages=[
        *find_packages(include=["ascend_spec", "ascend_spec.*"]),
        "ascend_spec_ops",
        *(f"ascend_spec_ops.{name}" for name in find_packages("ops")),
    ],
)
