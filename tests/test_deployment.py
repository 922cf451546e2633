"""deploy/kubernetes: what Kubernetes takes, what our commands take, and that both mean the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from omni_router import own as router_routes
from omni_router.settings import read
from omni_server import cli, guard
from omni_server.cli.configuration import command_line
from omni_server.cli.configuration import read as read_server

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "deploy" / "kubernetes"
DOCS = (ROOT / "docs" / "deployment.md").read_text()
VERSIONS = ("1.29", "1.33", "1.37")
STOPPING_S = 20
"""Beyond the drain: docs/operations.md, "Stopping"."""
Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    """All of them but the kustomization."""
    files = sorted(set(PLACE.glob("*.yaml")) - {PLACE / "kustomization.yaml"})
    return [found for file in files for found in yaml.safe_load_all(file.read_text())]


def named(kind: str, name: str) -> Manifest:
    """The one of this kind and name."""
    [found] = [m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


WORKERS = named("StatefulSet", "omni-worker")["spec"]
ROUTERS = named("Deployment", "omni-router")["spec"]
PODS = {"worker": WORKERS["template"], "router": ROUTERS["template"]}


def container(of: str) -> Manifest:
    """The only one of a pod."""
    [found] = PODS[of]["spec"]["containers"]
    return dict(found)


def router_settings(tmp_path: Path) -> Any:
    """As the router reads them."""
    file = tmp_path / "router.yaml"
    file.write_text(named("ConfigMap", "omni-router")["data"]["router.yaml"])
    return read(file, {})


def server_settings() -> dict[str, Any]:
    """As `omni serve` reads its arguments; ConfigError for what it would refuse."""
    command = get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]
    typed = command.make_context("serve", list(container("worker")["args"]))
    configuration = read_server(command_line(typed))
    configuration.refuse()
    return {name: setting.value for name, setting in configuration.server.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_them(version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in manifests():
        schemas.validate(manifest, version, strict=True)


def test_the_kustomization_has_all_of_them() -> None:
    listed = yaml.safe_load((PLACE / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted({f.name for f in PLACE.iterdir()} - {"kustomization.yaml"})


def test_everything_that_selects_pods_finds_some() -> None:
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    selectors = list(selectors_of(manifests()))
    assert len(selectors) == 9
    for selector in selectors:
        assert any(selector.items() <= of.items() for of in labels), selector


def selectors_of(found: Any) -> Iterator[dict[str, str]]:
    """The labels asked for, wherever they stand."""
    match found:
        case {"matchLabels": labels}:
            yield labels
        case {"kind": "Service", "spec": {"selector": labels}}:
            yield labels
        case dict():
            for value in found.values():
                yield from selectors_of(value)
        case list():
            for value in found:
                yield from selectors_of(value)


@pytest.mark.parametrize("pod", PODS)
def test_ports_and_probes_are_those_of_the_command(pod: str, tmp_path: Path) -> None:
    listens = {"worker": server_settings()["port"], "router": router_settings(tmp_path).port}
    host = {"worker": server_settings()["host"], "router": router_settings(tmp_path).host}
    probes = {"worker": guard.PROBES, "router": router_routes.PROBES}
    assert container(pod)["ports"] == [{"name": "http", "containerPort": listens[pod]}]
    assert host[pod] == "0.0.0.0"
    for kind, path in (("livenessProbe", "/live"), ("readinessProbe", "/ready")):
        asked = container(pod)[kind]["httpGet"]
        assert asked == {"path": path, "port": "http"}
        assert path in probes[pod]


@pytest.mark.parametrize("service", ["omni", "omni-workers"])
def test_services_lead_to_the_port_by_its_name(service: str) -> None:
    [port] = named("Service", service)["spec"]["ports"]
    assert port["targetPort"] == "http"


def test_the_router_knows_every_worker_by_its_name_in_the_cluster(tmp_path: Path) -> None:
    assert WORKERS["serviceName"] == named("Service", "omni-workers")["metadata"]["name"]
    pods = [f"omni-worker-{number}" for number in range(WORKERS["replicas"])]
    listed = {worker.name: worker.url for worker in router_settings(tmp_path).workers}
    assert listed == {pod: f"http://{pod}.{WORKERS['serviceName']}:8000" for pod in pods}


def test_routers_together_send_a_worker_what_it_takes(tmp_path: Path) -> None:
    share = router_settings(tmp_path).max_in_flight_per_worker
    assert share * ROUTERS["replicas"] == server_settings()["max_in_flight"]


def test_pods_have_the_time_to_drain(tmp_path: Path) -> None:
    worker, router = PODS["worker"]["spec"], PODS["router"]["spec"]
    drain_s = server_settings()["drain_timeout_s"]
    assert worker["terminationGracePeriodSeconds"] == drain_s + STOPPING_S
    [word, pause_s] = container("router")["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    drain_s = router_settings(tmp_path).drain_timeout_s + int(pause_s)
    assert router["terminationGracePeriodSeconds"] == drain_s + STOPPING_S


@pytest.mark.parametrize("pod", PODS)
def test_what_is_mounted_is_there_and_what_is_written_is_mounted(pod: str) -> None:
    volumes = {volume["name"]: volume for volume in PODS[pod]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container(pod)["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            named("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        if "configMap" in volume:
            named("ConfigMap", volume["configMap"]["name"])
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert "/tmp" in mounts


def test_workers_share_their_weights_and_voices(tmp_path: Path) -> None:
    mounts = {mount["mountPath"]: mount for mount in container("worker")["volumeMounts"]}
    assert mounts["/models"].get("readOnly") is True
    assert server_settings()["voices_dir"].startswith("/voices/")
    assert not mounts["/voices"].get("readOnly")
    assert {"/dev/shm", "/cache"} <= set(mounts)


def test_the_secret_of_the_docs_has_every_key_that_pods_need() -> None:
    made = set(re.findall(r"--from-literal=(\w+)=", DOCS))
    wanted = [
        entry["valueFrom"]["secretKeyRef"]
        for pod in PODS
        for entry in container(pod)["env"]
        if "valueFrom" in entry
    ]
    assert {ref["key"] for ref in wanted} == made
    assert {ref["name"] for ref in wanted} == {"omni-keys"}
    assert "create secret generic omni-keys" in DOCS


def test_the_router_starts_with_the_file_that_is_mounted() -> None:
    [mount] = [m for m in container("router")["volumeMounts"] if m["name"] == "config"]
    assert container("router")["args"] == [f"--config={mount['mountPath']}/router.yaml"]
    assert container("router")["command"] == ["omni-router"]
    assert container("worker")["command"] == ["omni", "serve"]
