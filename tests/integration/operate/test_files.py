"""The files for operators, checked by the programs that read them in production."""

import json
import re
import sys
from pathlib import Path

import pytest
import trustme

from polybus.cli.app import run
from tests.integration.interop.nats_servers import VERSIONS, binary_of
from tests.unit.prometheus.dashboard import dashboard, expressions

from .tools import FILES, ROOT, accepted, tool

UNITS = sorted((ROOT / "examples").rglob("*.service"))
MANIFESTS = sorted(path for path in (ROOT / "examples").rglob("*.yaml"))
PROMTOOL = "scripts/debian-packages.sh prometheus"


def test_prometheus_reads_its_configuration_and_the_rules() -> None:
    said = accepted(tool("promtool", PROMTOOL), "check", "config", "--lint-fatal", "prometheus.yml")
    assert "1 rule files found" in said and "8 rules found" in said


def test_each_alert_fires_on_its_series_and_none_on_those_of_a_healthy_service() -> None:
    accepted(tool("promtool", PROMTOOL), "test", "rules", "alerts.test.yml")
    alerts = re.findall(r"alert: (\w+)", (FILES / "alerts.yml").read_text())
    tests = (FILES / "alerts.test.yml").read_text()
    fired = re.findall(r"alertname: (\w+),?\s+exp_alerts", tests)
    quiet = re.findall(r"alertname: (\w+) }", tests)
    assert len(alerts) == 8
    assert ({*fired}, {*quiet}) == ({*alerts}, {*alerts})


def test_the_dashboard_shows_the_same_for_one_page_and_for_two_that_report_the_same_nodes(tmp_path: Path) -> None:
    """In the job `two`, each series of the job `one` was scraped from two instances."""
    queries = [query.replace("$__rate_interval", "5m").replace("$node", ".*") for query in expressions(dashboard())]
    selectors = {found for query in queries for found in re.findall(r"(\w+)\{([^}]*)\}", query)}
    series = []
    for name, matchers in selectors:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', matchers)) | {"durable": "billing", "store": "shop-orders"}
        for node in ("x", "y"):
            for bound in ("1", "+Inf") if name.endswith("_bucket") else ("",):
                for job, pages in (("one", "a"), ("two", "ab")):
                    for instance in pages:
                        text = labels | {"node": node, "le": bound, "job": job, "instance": instance}
                        shown = ",".join(f'{label}="{value}"' for label, value in text.items() if value)
                        series.append(
                            {
                                "series": f"{name}{{{shown}}}",
                                "values": "0x60" if name.endswith(("_available", "_ready")) else "0+3x60",
                            }
                        )
    tests = []
    for query in queries:
        one, two = (f"({query.replace('$job', job)})" for job in ("one", "two"))
        comparisons = f"count({one} == {two}) > bool 0 or vector(0)", f"1 - (count({one} != {two}) or vector(0))"
        samples = {"eval_time": "20m", "exp_samples": [{"labels": "{}", "value": 1}]}
        tests += [{"expr": comparison, **samples} for comparison in comparisons]
    group = {"interval": "30s", "input_series": series, "promql_expr_test": tests}
    (tmp_path / "test.yml").write_text(json.dumps({"evaluation_interval": "30s", "tests": [group]}))
    accepted(tool("promtool", PROMTOOL), "test", "rules", tmp_path / "test.yml")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_knows_each_member_of_a_manifest(manifest: Path) -> None:
    accepted(tool("kubernetes-validate", "make ready"), "--strict", "--quiet", manifest)


def test_each_nats_server_has_a_volume_for_the_streams_of_the_service() -> None:
    servers, service = ((FILES / "kubernetes" / name).read_text() for name in ("nats.yaml", "shop.yaml"))
    stored = re.findall(r"jetstream \{ store_dir: (\S+) \}", servers)
    claims = re.findall(r"^  volumeClaimTemplates:.*\n    - metadata:\n        name: (\w+)$", servers, re.MULTILINE)
    mounts = dict(re.findall(r"\{ name: (\w+), mountPath: (\S+) \}", servers))
    assert [mounts[claim] for claim in claims] == stored != []
    replicas = re.findall(r"^  replicas: (\d+)$", servers, re.MULTILINE)
    assert re.findall(r'STORE_REPLICAS, value: "(\d+)"', service) == replicas == [str(servers.count("nats://nats-"))]


def test_systemd_creates_the_folder_for_the_streams_of_a_nats_server() -> None:
    [stored] = re.findall(r'jetstream \{ store_dir: "/var/lib/(\w+)" \}', (FILES / "nats.conf").read_text())
    assert f"\nStateDirectory={stored}\n" in (FILES / "nats.service").read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    here = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.M)  # theirs is not installed
    (tmp_path / unit.name).write_text(here)
    assert accepted(tool("systemd-analyze", "apt install systemd"), "verify", "--man=no", tmp_path / unit.name) == ""


def test_systemd_waits_while_a_nats_server_sends_its_clients_away() -> None:
    """After an `ExecStop=` that sends a signal and returns, systemd would send SIGTERM at once, which ends nats-server."""
    settings = dict(line.split("=", 1) for line in (FILES / "nats.service").read_text().splitlines() if re.match(r"\w+=", line))
    assert settings["KillSignal"] == "SIGUSR2" and "ExecStop" not in settings


@pytest.mark.parametrize("version", VERSIONS)
def test_nats_accepts_its_configurations(version: str, tmp_path: Path) -> None:
    trustme.CA().issue_cert("node1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "node1.pem")
    machine = re.sub(r'"/.*/node1\.\w+"', f'"{tmp_path / "node1.pem"}"', (FILES / "nats.conf").read_text())
    pod = re.findall(r"nats\.conf: \|\n((?:    .*\n)+)", (FILES / "kubernetes" / "nats.yaml").read_text())
    for configuration in (machine, *pod):
        (tmp_path / "nats.conf").write_text(configuration)
        accepted(binary_of(version), "-t", "-c", tmp_path / "nats.conf", NATS_TOKEN="s3cr3t", POD="nats-0")
    assert len(pod) == 1


def test_a_linter_finds_nothing_in_the_dockerfile(tmp_path: Path) -> None:
    assert run(["new", str(tmp_path / "shop")]) == 0
    accepted(tool("hadolint", "make ready"), tmp_path / "shop" / "Dockerfile")
