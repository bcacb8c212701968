"""The container images: linted, held to rules of ours, and the CPU one's steps executed in a clean directory.

No image is built here. The rules are plain functions over a Dockerfile's instructions, each with a mutant.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from dockerfile_parse import DockerfileParser
from ladder.wheel_source import PAIRS

from ascend_spec.config import ConfigError, load_speculative_config

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker" / "compose.yaml"
FILES = {
    path.name.removeprefix("Dockerfile."): path for path in sorted((ROOT / "docker").glob("Dockerfile.*"))
}
#: images whose base runs as root for a reason that the file gives
ROOT_IMAGES = {"ascend", "ascend-a3"}

Instruction = tuple[str, str]


def instructions(text: str) -> list[Instruction]:
    """(instruction, value) without comments."""
    parsed = DockerfileParser(fileobj=io.BytesIO(text.encode())).structure
    return [(step["instruction"], step["value"]) for step in parsed if step["instruction"] != "COMMENT"]


def last_stage(steps: list[Instruction]) -> list[Instruction]:
    return steps[max(index for index, (name, _) in enumerate(steps) if name == "FROM") :]


# ---- the linter
def lint(text: str) -> list[str]:
    hadolint = Path(sys.executable).with_name("hadolint")
    run = subprocess.run([hadolint, "--no-color", "-"], input=text, capture_output=True, text=True)
    assert not run.stderr, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize("image", FILES)
def test_linter_finds_nothing(image: str):
    assert not lint(FILES[image].read_text())


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("vllm/vllm-openai:v0.33.0", "vllm/vllm-openai:latest", "DL3007"),
        ("pip install --no-cache-dir", "pip install", "DL3042"),
        ("USER 10001", "USER root", "DL3002"),
        ("WORKDIR /src", "WORKDIR src", "DL3000"),
        ("HEALTHCHECK", "HEALTHCHEK", "unexpected"),
    ],
)
def test_linter_can_find_something(old: str, new: str, rule: str):
    text = FILES["cuda"].read_text()
    assert old in text
    assert any(rule in line for line in lint(text.replace(old, new)))


# ---- rules of ours
def bases_are_pinned(image: str, steps: list[Instruction]) -> None:
    bases = [value.split()[0] for name, value in steps if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"[a-z./-]+:v?\d+\.\d+\.\d+[a-z0-9-]*", base) for base in bases), bases


def the_wheel_is_built_apart(image: str, steps: list[Instruction]) -> None:
    """In a stage that is the same everywhere; the image gets the wheel and no source."""
    first = instructions(FILES["cpu"].read_text())
    assert steps[0][1].endswith("AS wheel")
    assert steps[: len(steps) - len(last_stage(steps))] == first[: len(first) - len(last_stage(first))]
    copied = [value for name, value in last_stage(steps) if name == "COPY"]
    assert "--from=wheel /wheels /wheels" in copied
    assert not any(value.startswith(("ops", "ascend_spec")) for value in copied)


def copied_files_are_there(image: str, steps: list[Instruction]) -> None:
    """In the repository, and not kept from the build by .dockerignore."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in (part for name, value in steps if name == "COPY" for part in sources(value)):
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, f".dockerignore keeps {source} out"


def sources(copy: str) -> list[str]:
    return [] if copy.startswith("--from") else copy.split()[:-1]


def the_wheel_changes_no_dependency(image: str, steps: list[Instruction]) -> None:
    installs = [
        part for name, value in steps if name == "RUN" for part in value.split("&&") if "/wheels/*" in part
    ]
    assert installs
    assert all("--no-deps" in part for part in installs)


def doctor_is_the_smoke_test(image: str, steps: list[Instruction]) -> None:
    assert any(name == "RUN" and "ascend-spec doctor" in value for name, value in last_stage(steps))


def health_is_checked_where_it_serves(image: str, steps: list[Instruction]) -> None:
    stage = dict(last_stage(steps))
    assert stage["EXPOSE"] == "8000"
    assert "http://127.0.0.1:8000/health" in stage["HEALTHCHECK"]
    assert json.loads(stage["HEALTHCHECK"].partition("CMD")[2])[0] == "python3"
    assert json.loads(stage["ENTRYPOINT"])


def no_root_without_reason(image: str, steps: list[Instruction]) -> None:
    users = [value for name, value in last_stage(steps) if name == "USER"]
    if image not in ROOT_IMAGES:
        assert users
        assert int(users[-1]) >= 1000
    else:
        assert not users
        assert "runs as root" in FILES[image].read_text()


Rule = Callable[[str, list[Instruction]], None]
#: rule -> mutants of the CPU image that it rejects: piece, replacement
RULES: dict[Rule, list[tuple[str, str]]] = {
    bases_are_pinned: [(":3.11.14-slim-bookworm\nARG", "\nARG"), (":3.11.14-slim-bookworm AS", ":3-slim AS")],
    the_wheel_is_built_apart: [("--from=wheel /wheels", "ascend_spec"), ("COPY ops ops", "COPY ops kernels")],
    copied_files_are_there: [("COPY ops ops", "COPY kernels ops"), ("COPY ops ops", "COPY tests ops")],
    the_wheel_changes_no_dependency: [("--no-deps /wheels/*.whl", "/wheels/*.whl")],
    doctor_is_the_smoke_test: [("RUN ascend-spec doctor", "RUN ascend-spec methods")],
    health_is_checked_where_it_serves: [("EXPOSE 8000", "EXPOSE 8080"), (":8000/health", ":8000/")],
    no_root_without_reason: [("USER 10001\n", ""), ("USER 10001", "USER 0")],
}


@pytest.mark.parametrize("image", FILES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule, image: str):
    rule(image, instructions(FILES[image].read_text()))


@pytest.mark.parametrize(
    ("rule", "mutant"), [(rule, mutant) for rule, mutants in RULES.items() for mutant in mutants]
)
def test_a_broken_image_is_seen(rule: Rule, mutant: tuple[str, str]):
    text = FILES["cpu"].read_text()
    assert mutant[0] in text
    with pytest.raises((AssertionError, KeyError, ValueError)):
        rule("cpu", instructions(text.replace(*mutant)))


def test_images_are_those_of_the_versions_tested():
    for image, base in (("ascend", "v{}"), ("ascend-a3", "v{}-a3")):
        steps = instructions(FILES[image].read_text())
        tag = last_stage(steps)[0][1].partition(":")[2]
        assert tag in {base.format(version) for version in PAIRS}
    stock = (ROOT / "requirements" / "vllm-no-deps.txt").read_text()
    version = last_stage(instructions(FILES["cuda"].read_text()))[0][1].partition(":v")[2]
    assert f"vllm=={version}\n" in stock


def test_the_two_ascend_images_differ_in_their_base_alone():
    two, three = (instructions(FILES[image].read_text()) for image in ("ascend", "ascend-a3"))
    assert [step for step in three if step not in two] == [("FROM", last_stage(two)[0][1] + "-a3")]
    assert len(two) == len(three)


# ---- compose
def compose(text: str) -> dict[str, Any]:
    """Services of a compose file, after the variables' and YAML's substitutions; ValueError where it is wrong."""
    text = re.sub(r"\$\{\w+:[-?][^}]*\}", "/given", text)
    content = {key: value for key, value in yaml.safe_load(text).items() if not key.startswith("x-")}
    compose_spec.PyOptions().from_yaml(yaml.safe_dump(content)).validate()
    return content["services"]


def test_compose_file_has_a_service_an_image():
    services = compose(COMPOSE.read_text())
    assert set(services) == set(FILES)
    for name, service in services.items():
        assert service["profiles"] == [name]
        assert service["image"] == f"ascend-spec:{name}"
        build = service["build"]
        assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == FILES[name]
        assert service["ports"] == ["8000:8000"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shm_size: 8gb", "shm_size: many"),
        ("profiles: [cuda]", "profile: [cuda]"),
        ("unless-stopped", "sometimes"),
    ],
)
def test_a_wrong_compose_file_is_seen(old: str, new: str):
    text = COMPOSE.read_text()
    assert old in text
    with pytest.raises(ValueError):
        compose(text.replace(old, new))


# ---- what the files ask vLLM for
def options_after(words: list[str], name: str) -> Iterator[Any]:
    """JSON values of an option of a command line, in either spelling."""
    for index, word in enumerate(words):
        if word == name:
            yield json.loads(words[index + 1])
        elif word.startswith(f"{name}="):
            yield json.loads(word.partition("=")[2])


def check_speculation(words: list[str]) -> None:
    """Our configuration layer takes it, as the plugin will."""
    (carrier,), (additional,) = (
        list(options_after(words, name)) for name in ("--speculative-config", "--additional-config")
    )
    assert load_speculative_config({**carrier, "ascend_spec": additional["ascend_spec"]}).method == "ngram"


def test_compose_speculation_can_be_honoured():
    for service in compose(COMPOSE.read_text()).values():
        check_speculation(service["command"])


@pytest.mark.parametrize("image", FILES)
def test_speculation_in_the_comments_can_be_honoured(image: str):
    comments = [line for line in FILES[image].read_text().splitlines() if line.startswith("#")]
    quoted = re.findall(r"(--(?:speculative|additional)-config) '([^']+)'", "\n".join(comments))
    check_speculation([word for pair in quoted for word in pair])


def test_a_speculation_that_cannot_be_honoured_is_seen():
    carrier = json.dumps({"method": "ngram", "num_speculative_token": 4})
    with pytest.raises(ConfigError):
        check_speculation(["--speculative-config", carrier, "--additional-config", '{"ascend_spec": {}}'])


# ---- the CPU image's steps, executed
@pytest.mark.full
def test_steps_of_the_cpu_image_run_in_a_clean_directory(tmp_path: Path):
    """pip's steps run as they stand, with the image's folders below a temporary one and an environment for its
    Python; the user's and the base's steps are the container's own."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    environment = {"PATH": f"{venv}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_CERT", "TORCH_INDEX_URL", "SSL_CERT_FILE"):
        environment |= {name: os.environ[name]} if name in os.environ else {}
    directory = tmp_path
    ran = []
    for name, value in instructions(FILES["cpu"].read_text()):
        if name == "WORKDIR":
            directory = tmp_path / value.lstrip("/")
            directory.mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            copy(value, directory, tmp_path)
        elif name == "ARG":
            key, _, default = value.partition("=")
            environment.setdefault(key, default.strip('"'))
        elif name == "RUN":
            steps = [part.strip() for part in value.split("&&")]
            for step in (part for part in steps if part.startswith(("pip ", "ascend-spec "))):
                step = re.sub(r"(?<=\s)/(wheels|requirements)\b", rf"{tmp_path}/\1", step)
                subprocess.run(["bash", "-ec", step], cwd=directory, env=environment, check=True)
                ran.append(step.split()[0])
        elif name == "ENTRYPOINT":
            server = subprocess.run(
                [*json.loads(value), "--help=speculative"], env=environment, capture_output=True, text=True
            )
            assert server.returncode == 0, server.stderr[-2000:]
    assert ran == ["pip"] * 5 + ["ascend-spec"]
    doctor = subprocess.run(
        [venv / "bin" / "ascend-spec", "doctor", "--json"], env=environment, capture_output=True
    )
    assert json.loads(doctor.stdout)["versions"]["torch"].startswith("2.13.0")


def copy(value: str, directory: Path, root: Path) -> None:
    """Links what a COPY step copies from the repository."""
    target = value.split()[-1]
    for source in sources(value):
        place = root / target.lstrip("/") if target.startswith("/") else directory / target
        place = (
            place / source
            if target in ("./",)
            else place / Path(source).name
            if target.endswith("/")
            else place
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(ROOT / source)
