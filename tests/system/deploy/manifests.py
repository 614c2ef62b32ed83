"""What stands in deploy/, as the tests read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
COMPONENTS = DEPLOY / "components"
MONITORING = DEPLOY / "monitoring"


def read(path: Path) -> Any:
    """The one document of a file."""
    return yaml.safe_load(path.read_text())


def rules() -> dict[str, dict[str, Any]]:
    """The alerts, by name."""
    groups = read(MONITORING / "prometheus-rule.yaml")["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}
