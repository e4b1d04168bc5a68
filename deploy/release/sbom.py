"""What an image holds, read from its files, as CycloneDX 1.6.

Debian's packages are those of dpkg's list, and Python's those of their own metadata: what is in the
image, and not what a lock file would install on some platform.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

from deploy.release.source import Source

Json = dict[str, object]


def write(root: Path, component: str, source: Source, path: Path) -> None:
    """Write what the files of an image below `root` are made of."""
    path.write_text(json.dumps(document(root, component, source), indent=2) + "\n")


def document(root: Path, component: str, source: Source) -> Json:
    """Return the list of what the files of an image below `root` are made of."""
    parts = sorted([*debian(root), *python(root)], key=lambda part: str(part["purl"]))
    name = f"tandem-{component}"
    made = {
        "type": "container",
        "bom-ref": name,
        "name": name,
        "version": source.version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    # The same image has the same list, whenever it is made.
    seed = json.dumps([made, source.commit, parts], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, seed).urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(source.time, UTC).isoformat(),
            "component": made,
        },
        "components": parts,
    }


def _part(purl: str, name: str, version: str, licence: str = "") -> Json:
    part: Json = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if licence:
        part["licenses"] = [{"license": {"name": licence}}]
    return part


def debian(root: Path) -> Iterator[Json]:
    """Yield Debian's packages that dpkg has installed."""
    status = root / "var" / "lib" / "dpkg" / "status"
    for entry in status.read_text().split("\n\n") if status.exists() else ():
        field = HeaderParser().parsestr(entry)
        if (field["Status"] or "").endswith(" installed"):
            name, version = field["Package"], field["Version"]
            at = quote(version, safe="~+")
            yield _part(
                f"pkg:deb/debian/{quote(name, safe='+')}@{at}?arch={field['Architecture']}",
                name,
                version,
            )


def python(root: Path) -> Iterator[Json]:
    """Yield what Tandem's environment has of Python's packages, Tandem included."""
    for site in sorted(root.glob("opt/tandem/lib/python3*/site-packages")):
        for found in distributions(path=[str(site)]):
            about = found.metadata
            name = re.sub(r"[-_.]+", "-", about["Name"]).lower()
            licence = about["License-Expression"] or (about["License"] or "").partition("\n")[0]
            yield _part(f"pkg:pypi/{name}@{found.version}", about["Name"], found.version, licence)
