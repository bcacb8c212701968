"""The Kubernetes examples: valid by the schema, and of one piece with each other and with the images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from test_docker import FILES, check_speculation, instructions, last_stage

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
MANIFESTS = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
#: oldest and newest version of the API that the validator knows and that are still in use
VERSIONS = ("1.30", "1.37")
#: what a device plugin gives out
DEVICES = {"cuda": "nvidia.com/gpu", "ascend": "huawei.com/Ascend910"}


def resources(text: str) -> dict[str, dict[str, Any]]:
    """Resources of a manifest by kind, each valid.

    Raises:
        kubernetes_validate.ValidationError: one that is not; unknown fields are errors too.
    """
    found = list(yaml.safe_load_all(text))
    for resource in found:
        for version in VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)
    return {resource["kind"]: resource for resource in found}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_is_valid(name: str):
    assert set(resources(MANIFESTS[name].read_text())) == {"Deployment", "Service"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 1", "replicas: one"),
        ("replicas: 1", "copies: 1"),
        ("containerPort: 8000", "containerPort: http"),
        ("  selector: {app:", "  selecter: {app:"),
        ("emptyDir: {medium: Memory", "emptyDir: {media: Memory"),
    ],
)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_wrong_manifest_is_seen(name: str, old: str, new: str):
    text = MANIFESTS[name].read_text()
    assert old in text
    with pytest.raises(kubernetes_validate.ValidationError):
        resources(text.replace(old, new))


@pytest.mark.parametrize("name", MANIFESTS)
def test_parts_fit_together(name: str):
    parts = resources(MANIFESTS[name].read_text())
    spec, service = parts["Deployment"]["spec"], parts["Service"]["spec"]
    pod = spec["template"]
    (container,) = pod["spec"]["containers"]
    assert spec["selector"]["matchLabels"] == service["selector"] == pod["metadata"]["labels"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == ports
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert all(probe == {"path": "/health", "port": "http"} for probe in probes)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    assert limits[DEVICES[name]] == requests[DEVICES[name]] == "1"


@pytest.mark.parametrize("name", MANIFESTS)
def test_container_fits_its_image(name: str):
    """User, port, and arguments that follow the image's entry point."""
    pod = resources(MANIFESTS[name].read_text())["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = dict(last_stage(instructions(FILES[name].read_text())))
    assert container["image"].endswith(f":{name}")
    assert str(container["ports"][0]["containerPort"]) == image["EXPOSE"]
    assert str(pod["securityContext"].get("runAsUser")) == image.get("USER", "None")
    assert json.loads(image["ENTRYPOINT"]) == ["vllm", "serve"] or container["args"][:2] == ["vllm", "serve"]
    check_speculation(container["args"])


def test_every_device_has_a_manifest():
    assert set(MANIFESTS) == set(DEVICES)
