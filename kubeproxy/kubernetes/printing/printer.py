"""Formats objects for ``-o``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from kubeproxy.kubernetes.printing.go_encoding import indented_json, yaml_text
from kubeproxy.kubernetes.printing.jsonpath import JsonPath
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.model.errors import ConfigError

FORMATS: Final = ("json", "jsonpath", "jsonpath-as-json", "jsonpath-file", "name", "yaml")


class Printer:
    """Formats objects in one format. Call `text` for each object in the order of printing."""

    def __init__(self, output: str, *, show_managed_fields: bool = False) -> None:
        """`output` is the value of ``-o``. It may be empty, if only a line about each object is printed. Raise
        `ConfigError` for an unknown format."""
        self.output, _, argument = output.partition("=")
        self._show_managed_fields = show_managed_fields
        self._count = 0
        self._render = self._renderer(argument)

    @property
    def prints_objects(self) -> bool:
        """Return whether whole objects are printed, and not only a line about each object."""
        return self.output not in ("", "name")

    def text(self, data: dict[str, Any]) -> str:
        """Return the text of an object, with a separator if it is not the first."""
        self._count += 1
        if not self._show_managed_fields and "managedFields" in (data.get("metadata") or {}):
            data = copy.copy(data)
            data["metadata"] = {key: value for key, value in data["metadata"].items() if key != "managedFields"}
        return self._render(data)

    def _renderer(self, argument: str) -> Callable[[dict[str, Any]], str]:
        match self.output:
            case "" | "name":
                return lambda _: ""
            case "json":
                return lambda data: indented_json(data) + "\n"
            case "yaml":
                return lambda data: ("---\n" if self._count > 1 else "") + yaml_text(data)
            case "jsonpath" | "jsonpath-as-json" | "jsonpath-file":
                return self._template(argument)
            case _:
                allowed = ",".join(FORMATS)
                raise ConfigError(
                    f"unable to match a printer suitable for the output format {quoted(self.output)},"
                    f" allowed formats are: {allowed}"
                )

    def _template(self, argument: str) -> Callable[[dict[str, Any]], str]:
        if not argument:
            raise ConfigError("template format specified but no template given")
        if self.output == "jsonpath-file":
            try:
                with open(argument, encoding="utf-8") as file:
                    argument = file.read()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"error reading --template {argument}, {error}") from None
        template = JsonPath(argument)
        if self.output == "jsonpath-as-json":
            return lambda data: indented_json(template.values(data)) + "\n"
        return template.render
