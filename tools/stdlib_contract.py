"""An import-linter contract: modules that import the standard library and their siblings only."""

from __future__ import annotations

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from typing_extensions import override


class OnlyStdlibContract(Contract):
    """Holds if and only if `modules` and their descendants import only the standard library and one another.

    A module that is started by path sees its siblings as top-level names, so those are allowed as well.
    """

    type_name = "only_stdlib"

    modules = fields.ListField(subfield=fields.StringField())

    @override
    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        foreign: list[tuple[str, str]] = []
        for root in self.modules:  # type: ignore[attr-defined]  # import-linter replaces the field by its value
            own = {root} | graph.find_descendants(root)
            siblings = {module.removeprefix(root + ".").partition(".")[0] for module in own}
            for module in sorted(own):
                for imported in sorted(graph.find_modules_directly_imported_by(module)):
                    top = imported.partition(".")[0]
                    if imported not in own and top not in sys.stdlib_module_names and top not in siblings:
                        foreign.append((module, imported))
        return ContractCheck(kept=not foreign, metadata={"foreign": foreign})

    @override
    def render_broken_contract(self, check: ContractCheck) -> None:
        for module, imported in check.metadata["foreign"]:
            output.print_error(f"- {module} imports {imported}, which a workload need not have.")
