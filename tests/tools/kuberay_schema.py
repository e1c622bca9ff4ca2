"""Makes tests/golden/kuberay/schema.json.gz from a checkout: `python -m tests.tools.kuberay_schema DIR`.

The golden file is of KubeRay's commit feeaf72f (1.7). The schema is strict: it refuses fields that an API
server would drop in silence. Equal parts are kept once.
"""

import copy
import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

SCHEMA = ROOT / "tests" / "golden" / "kuberay" / "schema.json.gz"
SHARED = 1000  # characters of a part from which on it is kept once


def strict(schema: Any) -> Any:
    """A schema of OpenAPI as JSON schema that refuses unknown fields."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
    kept = {name: one for name, one in schema.items() if not name.startswith("x-") and name != "description"}
    if "properties" in kept:
        kept["properties"] = {name: strict(one) for name, one in kept["properties"].items()}
        if not is_open:
            kept.setdefault("additionalProperties", False)
    return {name: one if name == "properties" else strict(one) for name, one in kept.items()}


def shared(schema: Any, parts: dict[str, Any]) -> Any:
    """The schema with large parts replaced by references to `parts`."""
    if isinstance(schema, list):
        return [shared(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: shared(one, parts) for name, one in schema.items()}
    text = json.dumps(found, sort_keys=True)
    if "type" not in found or len(text) < SHARED:
        return found
    name = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    parts[name] = found
    return {"$ref": f"#/$defs/{name}"}


def main(checkout: Path) -> None:
    """Write SCHEMA."""
    parts: dict[str, Any] = {}
    kinds = []
    for name in ("rayclusters", "rayjobs"):
        path = checkout / "ray-operator" / "config" / "crd" / "bases" / f"ray.io_{name}.yaml"
        crd = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        [version] = [one for one in crd["spec"]["versions"] if one["name"] == "v1"]
        schema = strict(copy.deepcopy(version["schema"]["openAPIV3Schema"]))
        schema["properties"]["kind"] = {"const": crd["spec"]["names"]["kind"]}
        schema["properties"]["apiVersion"] = {"const": "ray.io/v1"}
        labels = {"type": "object", "additionalProperties": {"type": "string"}}
        fields = {"name": {"type": "string"}, "generateName": {"type": "string"}, "labels": labels}
        schema["properties"]["metadata"] = {
            "type": "object",
            "additionalProperties": False,
            "properties": fields,
        }
        schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
        kinds.append(shared(schema, parts))
    whole = {"anyOf": kinds, "$defs": parts}
    SCHEMA.write_bytes(gzip.compress(json.dumps(whole, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
