"""`python helm/generate.py [--check]`: write what follows from code and chart, or say it is stale.

Made: the schema of values.yaml, the chart's README, the dashboards, the rendered manifests, and the
pages of docs/ about rights and metrics, and the tables of fields in docs/security.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dashboards
import fields
import pages
import readme
import values

from controlplane import binaries
from scheduler_extender.admission.config import DEFAULT_HOST_PATHS
from scheduler_extender.cluster import kinds
from tandem.contracts import names
from tandem.contracts.claims import ENTRY
from tandem.errors import TandemError

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "tandem"
MANIFESTS_HEAD = """# The chart with its defaults, rendered by helm/generate.py.
# The image of kube-scheduler is to be of the cluster's own version.
"""
DRIVER_HEAD = """# The DRA driver (docs/handover.md), rendered by helm/generate.py.
# It goes on a cluster that has tandem.yaml, with `hand_over: label` in the settings of the agents.
"""
NAMESPACE = f"""apiVersion: v1
kind: Namespace
metadata:
  name: {names.NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
KUSTOMIZATION = """# Made by helm/generate.py.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [crds.yaml, tandem.yaml]
"""


def made() -> Iterator[tuple[Path, str]]:
    """Yield each file with what it must hold."""
    yield CHART / "values.schema.json", json.dumps(values.schema(), indent=1) + "\n"
    yield CHART / "templates" / "policies.yaml", policies()
    yield CHART / "files" / "kinds.yaml", kinds.SHIPPED.read_text()
    yield ROOT / "docs" / "workloads.md", pages.workloads()
    yield ROOT / "docs" / "rbac.md", pages.rights()
    yield CHART / "README.md", readme.readme()
    yield ROOT / "docs" / "metrics.md", pages.metrics()
    yield fields.PAGE, fields.page()
    for name, text in dashboards.dashboards():
        yield CHART / "dashboards" / f"{name}.json", text
    yield from manifests()


def manifests() -> Iterator[tuple[Path, str]]:
    """Yield the chart as Helm renders it, for those who install without Helm.

    Raises:
        TandemError: there is no Helm on this machine, or it refuses the chart.
    """
    folder = ROOT / "deploy" / "manifests"
    yield folder / "tandem.yaml", f"{MANIFESTS_HEAD}{NAMESPACE}{rendered()}"
    driver = (
        each
        for each in re.split(r"(?m)^---\n", rendered("--set", "dra.enabled=true"))
        if re.search(r"(?m)^    app.kubernetes.io/component: dra$", each)
    )
    yield folder / "dra.yaml", DRIVER_HEAD + "---\n".join(driver)
    definitions = sorted((CHART / "crds").glob("*.yaml"))
    yield folder / "crds.yaml", "---\n".join(path.read_text() for path in definitions)
    yield folder / "kustomization.yaml", KUSTOMIZATION


def rendered(*options: str) -> str:
    """Return the chart as Helm renders it, without what makes its objects Helm's own."""
    kubernetes = next(p for p in binaries.PROGRAMS if p.name == "kube-scheduler")
    command = [
        *(str(binaries.require("helm")), "template", "tandem", str(CHART), "--skip-tests"),
        *("--namespace", names.NAMESPACE, "--kube-version", binaries.version(kubernetes)),
        *options,
    ]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    if answer.returncode != 0:
        raise TandemError(f"helm cannot render the chart: {answer.stderr.strip()}")
    helms = r"(?m)^ +(app.kubernetes.io/managed-by|helm.sh/chart): .+\n"
    return re.sub(helms, "", answer.stdout)


def policies() -> str:
    """Return the chart's template of the policies, whose source is next to this file."""
    source = "---\n".join(
        (ROOT / "helm" / name).read_text() for name in ("policies.yaml", "agent-policy.yaml")
    )
    source = source.replace(f":{names.NAMESPACE}:", ":{{ .Release.Namespace }}:")
    source = re.sub(rf":{names.AGENT_NAMESPACE}\b", ":{{ .Values.agent.namespace }}", source)
    given = ".Values.scheduler.extender.config"
    source = source.replace(
        f"'{names.PRIORITY_CLASS}'",
        f"""'{{{{ dig "admission" "priority_class" "{names.PRIORITY_CLASS}" {given} }}}}'""",
    )
    grace = f'{{{{ dig "admission" "max_termination_grace_s" {names.MAX_GRACE_S} {given} | int }}}}'
    source = re.sub(rf"(<= |write ){names.MAX_GRACE_S}\b", rf"\g<1>{grace}", source)
    source = source.replace(
        "'refuse' != 'refuse'",
        f"""'{{{{ dig "admission" "resource_claims" "refuse" {given} }}}}' != 'refuse'""",
    )
    claims = "object.spec.?resourceClaims.orValue([])"
    source = source.replace(
        f"{claims}.size() == 0",
        f"""{claims}{{{{ if eq (include "tandem.gpuClaims" .) "true" }}}}.all(c,"""
        f""" c.name == '{ENTRY}' && c.?resourceClaimName.orValue('') != '')"""
        """{{ else }}.size() == 0{{ end }}""",
    )
    paths = " ".join(f'"{path}"' for path in DEFAULT_HOST_PATHS)
    source = source.replace(
        "['/*']", f"""{{{{ dig "admission" "host_paths" (list {paths}) {given} | toJson }}}}"""
    )
    labels = """{{- include "tandem.labels" (dict "root" . "component" "policies") | nindent 4 }}"""
    source = re.sub(r"(?m)^(metadata:\n  name: .+\n)", rf"\g<1>  labels: {labels}\n", source)
    head = "{{- /* Made by helm/generate.py of helm/policies.yaml; change it there. */ -}}\n"
    begin = """{{- if and .Values.policies.enabled (ne .Values.mode "shadow") }}"""
    return f"{head}{begin}\n{source}{{{{- end }}}}\n"


def main() -> int:
    """Write what has changed; with --check name the first of it, and return 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    for path, text in made():
        if path.exists() and path.read_text() == text:
            continue
        name = path.relative_to(ROOT)
        if check:
            print(f"{name} is stale: run `python helm/generate.py` and commit what it writes.")
            return 1
        # At once: the manifests are rendered of what comes before them.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"{name} written")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TandemError as error:
        sys.exit(f"error: {error.message}\n  {error.hint}".rstrip())
