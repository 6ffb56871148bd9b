"""The grammar of device requests: what is read, what is refused and where, and that hostile text costs little."""

from __future__ import annotations

import contextlib
import time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.common.errors import InvalidInput
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.requests.amounts import add_amounts
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.core.allocation.requests.syntax import MAX_DEPTH, MAX_LENGTH, MAX_TERMS, RequestParser
from ai.backend.core.allocation.requests.terms import AllOf, AnyOf, Attributes, Comparison, Has, Literal, Not, Term

parse = RequestParser().parse
A100: Attributes = {
    "model": ("NVIDIA A100",),
    "memory": (Decimal(80 * 2**30),),
    "compute_capability": ("8.0",),
    "nvidia.compute_capability": ("8.0",),
    "precision": ("fp16", "bf16"),
    "numa_node": (Decimal(1),),
    "l2": ("40m",),
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("memory >= 40g", True),
        ("memory > 80g", False),
        ("40g <= memory", True),
        ("memory == 85899345920", True),
        ("compute_capability >= 8.0", True),
        ("compute_capability >= 8", True),
        ("compute_capability >= 8.10", False),
        ("compute_capability < 8.0.1", True),
        ("nvidia.compute_capability == 8", True),
        ('compute_capability == "8"', False),
        ('model in ["NVIDIA L4", "NVIDIA A100"]', True),
        ('model != "NVIDIA A100"', False),
        ('model.startsWith("NVIDIA ") && !(model.contains("L4"))', True),
        ('"bf16" in precision && !("fp8" in precision)', True),
        ("numa_node == 1 || numa_node == 0", True),
        ("l2 >= 32m", True),
        ("has(memory) && !has(nothing)", True),
        # An attribute that a device lacks is unknown: neither it nor its contrary holds, and the rest decides.
        ("nothing >= 3", None),
        ("!(nothing >= 3)", None),
        ('nothing != "x"', None),
        ("nothing >= 3 || memory >= 40g", True),
        ("nothing >= 3 && memory >= 100g", False),
        ("model >= 5 || true_ == 1", "refused"),
    ],
)
def test_value_for_a_device(text: str, value: bool | str | None) -> None:
    if value == "refused":
        with pytest.raises(InvalidInput):
            parse(text)
        return
    term, constraints = parse(text)
    assert term is not None
    assert not constraints
    assert term.value_for(A100) is value


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "empty"),
        ("memory >=", 10, "too early"),
        ("memory ? 5", 8, "unexpected '?'"),
        ("memory >= 40g compute", 15, "unexpected 'compute'"),
        ('memory >= "x"', 11, "compared with a size"),
        ("memory >= 1.0000000000000000000001g", 11, "24 characters"),
        ("memory >= 0.3k", 11, "whole number of bytes"),
        ("model >= 5", 10, "quoted text"),
        ('model >= "5"', 1, "has no order"),
        ('driver >= "five"', 11, "has no order"),
        ("memory.startsWith(5)", 1, "takes one quoted text"),
        ("memory in []", 1, "empty list"),
        ("system('x')", 1, "no function system"),
        ("__import__('os')", 1, "no function"),
        ("same(numa_node) || memory >= 40g", 1, "joined by &&"),
        ("!same(numa_node)", 2, "joined by &&"),
        ("same(3)", 1, "name of one attribute"),
        ("same(a, b)", 1, "name of one attribute"),
        ("link_bandwidth > 5", 18, "link_bandwidth >= NUMBER"),
        ('link == "wet"', 9, "one of direct"),
        ("memory >= 40g\n", 14, "does not print"),
        ("memory == 1" + " || memory == 1" * MAX_TERMS, None, "terms"),
        ("(" * (MAX_DEPTH + 1) + "has(a)" + ")" * (MAX_DEPTH + 1), None, "nest"),
        ("!" * (MAX_DEPTH + 1) + "has(a)", None, "nest"),
        ("a" * (MAX_LENGTH + 1), MAX_LENGTH + 1, "characters"),
    ],
)
def test_a_malformed_request_is_refused_with_its_column(text: str, column: int | None, problem: str) -> None:
    with pytest.raises(InvalidInput, match="at column") as refused:
        parse(text)
    assert problem in refused.value.message
    assert column is None or refused.value.data["column"] == column


@pytest.mark.parametrize(
    "piece", ["(", "!", '"', "\\", "a||", "[", "1.", "a in [1,", "same(", ")", "&&", "a==1&&", "🜚"]
)
def test_hostile_text_costs_little(piece: str) -> None:
    text = (piece * MAX_LENGTH)[:MAX_LENGTH]
    parse("has(a)")
    started = time.process_time()
    with pytest.raises(InvalidInput):
        parse(text)
    assert time.process_time() - started < 0.5, "seconds of the processor, not by the clock"


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        parse(text)
    with pytest.raises(InvalidInput) as refused:
        parse(f"{text} &&")
    assert 1 <= refused.value.data["column"] <= len(text) + 4


_names = st.sampled_from(["memory", "model", "compute_capability", "nvidia.arch", "in_", "has_x"])
_quoted = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8).map(
    lambda text: Literal(text, is_quoted=True)
)
_numbers = st.integers(0, 10**6).map(lambda number: Literal(str(number), Decimal(number)))
_comparisons = st.one_of(
    st.builds(lambda n, o, v: Comparison(n, o, (v,)), st.just("memory"), st.sampled_from(["==", "!=", "<="]), _numbers),
    st.builds(lambda o, v: Comparison("model", o, (v,)), st.sampled_from(["==", "!=", "startsWith"]), _quoted),
    st.builds(lambda v: Comparison("tags", "in", tuple(v)), st.lists(_quoted | _numbers, min_size=1, max_size=4)),
    st.builds(Has, _names),
)


def _joined(kind: type[AllOf | AnyOf], terms: list[Term]) -> Term:
    flat: list[Term] = []
    for term in terms:
        flat += term.terms if isinstance(term, kind) else (term,)
    return kind(tuple(flat))


_terms: st.SearchStrategy[Term] = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda terms: _joined(AllOf, terms)),
        st.lists(inner, min_size=2, max_size=3).map(lambda terms: _joined(AnyOf, terms)),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(_terms)
def test_what_is_printed_is_read_again(term: Term) -> None:
    assert parse(str(term))[0] == term


@pytest.mark.parametrize(
    ("text", "keys", "canonical"),
    [
        ('tolerates("burn-in")', {"burn-in"}, 'tolerates("burn-in")'),
        (
            "memory >= 1g && tolerates('a') && tolerates('*')",
            {"a", "*"},
            'memory >= 1g && tolerates("a") && tolerates("*")',
        ),
        ("same(model) && tolerates('a\"b')", {'a"b'}, 'same(model) && tolerates("a\\"b")'),
    ],
)
def test_tolerations_are_told_apart_from_constraints(text: str, keys: set[str], canonical: str) -> None:
    request = RequestCompiler().compile(text)
    assert request.tolerated == keys
    assert request.text == canonical
    assert RequestCompiler().compile(canonical) == request
    assert not any("tolerates" in str(constraint) for constraint in request.constraints)


@pytest.mark.parametrize(
    "text", ["tolerates(key)", "tolerates()", "tolerates(1)", "tolerates('a', 'b')", "!tolerates('a')"]
)
def test_malformed_tolerations_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        RequestCompiler().compile(text)


def test_an_alternative_says_amounts_beside_what_its_devices_must_be() -> None:
    compiled = RequestCompiler().compile('model == "H100" && amount("cuda.device", 2) && amount("cuda.mem", 1.5g)')
    assert compiled.amounts == ResourceSlot({"cuda.device": Decimal(2), "cuda.mem": Decimal(3 * 2**29)})
    assert str(compiled) == 'model == "H100"'
    assert compiled.constraints == ()
    assert RequestCompiler().compile(compiled.text).text == compiled.text
    only = RequestCompiler().compile('amount("cuda.shares", 0.5)')
    assert (str(only), only.amounts) == ("any device", ResourceSlot({"cuda.shares": Decimal("0.5")}))
    assert only.selects({})
    assert only != RequestCompiler().compile('amount("cuda.shares", 0.25)')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('amount("cuda.device", 0)', "an amount is more than zero at column 23"),
        ('amount("cuda.device")', "a quoted slot and a quantity"),
        ("amount(cuda.device, 1)", "a quoted slot and a quantity"),
        ("amount(1, 1)", "a quoted slot and a quantity"),
        ('amount("cuda.device", "1")', "a quoted slot and a quantity"),
        ('amount("cuda.device", 1.2.3)', "a quoted slot and a quantity"),
        ('amount("cuda device", 1)', "'cuda device' is no name of a slot at column 8"),
        ('amount("cuda.device", 0.0000001)', "quantity out of range: '1E-7' at column 23"),
        ('amount("cuda.device", 1000000000000000000000)', "quantity out of range"),
        ('amount("cpu", 4)', "amount is of an accelerator's slot, and cpu is none at column 8"),
        ('amount("x.device", 1) && amount("x.device", 2)', "two amounts of x.device"),
        ('model == "A" || amount("x.device", 1)', 'amount("x.device", 1) concerns all devices'),
        ('!amount("x.device", 1)', 'amount("x.device", 1) concerns all devices'),
    ],
)
def test_amounts_that_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        RequestCompiler().compile(text)
    assert problem in caught.value.message


@given(
    st.sampled_from(
        ["memory >= 1g", 'model == "A" || model == "B"', 'tolerates("*")', "same(id) && (units > 1 || units < 3)"]
    )
)
def test_added_amounts_change_nothing_else(text: str) -> None:
    compiler = RequestCompiler()
    original = compiler.compile(text)
    extended = compiler.compile(add_amounts(original, ResourceSlot({"x.device": Decimal("1.50")})))
    assert extended.amounts == ResourceSlot({"x.device": Decimal("1.5")})
    assert (extended.term, extended.constraints, extended.tolerated) == (
        original.term, original.constraints, original.tolerated,
    )  # fmt: skip
    assert add_amounts(original, ResourceSlot()) == original.text
