"""An import-linter contract: features of a daemon import lower features only, and tiers keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from tools.layout import PREFIX, TIERS, WITHOUT_TIERS, row_of, tier_of
from typing_extensions import override


class FeaturesContract(Contract):
    """Holds if and only if every import inside `daemon` obeys the tables of `tools/layout.py`.

    `exceptions` are lines `importer -> imported`; one that matches no violation breaks the contract too.
    """

    type_name = "features"

    daemon = fields.StringField()
    exceptions = fields.ListField(subfield=fields.StringField(), required=False)

    @override
    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        daemon = str(self.daemon)
        # import-linter replaces the fields by their values.
        allowed: set[str] = set(cast("list[str] | None", self.exceptions) or ())
        violations = dict(violations_of(graph, daemon))
        broken = sorted((line, reason) for line, reason in violations.items() if line not in allowed)
        broken += [(line, "this exception is no longer needed") for line in sorted(allowed - set(violations))]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    @override
    def render_broken_contract(self, check: ContractCheck) -> None:
        for line, reason in check.metadata["broken"]:
            output.print_error(f"- {line}: {reason}")


def violations_of(graph: ImportGraph, daemon: str) -> Iterator[tuple[str, str]]:
    """Yield `importer -> imported` and the broken rule for each import inside the daemon that is not allowed."""
    root = f"{PREFIX}.{daemon}"
    for module in sorted(graph.find_descendants(root)):
        parts = module.removeprefix(root + ".").split(".")
        if row_of(daemon, parts[0]) is None:
            yield f"{module} -> {module}", f"{parts[0]!r} is in no row of tools/layout.py"
            continue
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if imported.startswith(root + "."):
                target = imported.removeprefix(root + ".").split(".")
                reason = _broken_rule(daemon, parts, target)
                if reason:
                    yield f"{module} -> {imported}", reason


def _broken_rule(daemon: str, importer: list[str], imported: list[str]) -> str:
    upper, lower = row_of(daemon, importer[0]), row_of(daemon, imported[0])
    if upper is None or lower is None:
        return ""
    own = importer[0] == imported[0]
    if not own and upper >= lower:
        return f"feature {importer[0]!r} is not above {imported[0]!r}"
    untiered = WITHOUT_TIERS[daemon]
    if importer[0] in untiered or imported[0] in untiered or len(importer) < 2 or len(imported) < 2:
        return ""
    tier, file = tier_of(importer[-1]), imported[-1]
    target = tier_of(file)
    allowed = TIERS[tier][1] if own else TIERS[tier][2]
    if target in allowed or any(
        word.startswith(target + " ") and fnmatchcase(file, word.rpartition(" ")[2] + "*") for word in allowed
    ):
        return ""
    whose = "its feature" if own else f"feature {imported[0]!r}"
    return f"a file of tier {tier!r} may not import tier {target!r} of {whose}"
