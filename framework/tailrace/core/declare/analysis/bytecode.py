"""Abstract interpretation of one function's bytecode.

Each instruction runs on sets of possible values, and both ways of a condition are taken. An instruction without an entry
in the table below joins its operands into its result; ``dis.stack_effect`` says how many values it pops and pushes.

Python versions differ in how they load and call. The table holds the instructions of 3.11, 3.12 and 3.13.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable
from inspect import CO_GENERATOR
from typing import Any, NamedTuple

from tailrace.core.declare.actor import ActorMeta
from tailrace.core.declare.analysis.flow import Flow
from tailrace.core.declare.analysis.frames import Call, Frame
from tailrace.core.declare.analysis.values import NO_VALUES, Atom, Instance, Known, Value, is_a
from tailrace.core.declare.topic import Edge

_LONGEST = 60


class Item(NamedTuple):
    """A value on the stack, and the source text of its expression, for messages."""

    value: Value
    text: str


_NULL = Item(NO_VALUES, "")
"""The NULL that a call finds in place of ``self``. Compared by identity."""
_UNKNOWN = Item(NO_VALUES, "...")
Stack = list[Item]
Do = Callable[["_Run", dis.Instruction], None]

_DO: dict[str, Do] = {}
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_GIVES_NOTHING = ("POP_", "STORE_", "DELETE_", "JUMP_", "RAISE_", "END_", "RERAISE", "RETURN_")


def run(flow: Flow, frame: Frame) -> None:
    """Interpret one function once, with the values known so far."""
    _Run(flow, frame).run()


@functools.lru_cache(maxsize=4096)
def _instructions(code: types.CodeType) -> tuple[tuple[dis.Instruction, ...], dict[int, int]]:
    """The instructions of a function, and the stack depth at the start of each exception handler."""
    listing: Any = dis.Bytecode(code)  # the attribute is not in typeshed
    handlers = {entry.target: entry.depth + entry.lasti + 1 for entry in listing.exception_entries}
    return tuple(dis.get_instructions(code)), handlers


class _Run:
    def __init__(self, flow: Flow, frame: Frame) -> None:
        self.flow = flow
        self.frame = frame
        self.stack: Stack = []
        self.keywords: tuple[str, ...] = ()

    def run(self) -> None:
        instructions, handlers = _instructions(self.frame.code)
        states = {offset: [_UNKNOWN] * depth for offset, depth in handlers.items()}
        again = True
        while again:
            again = False
            stack: Stack | None = []
            for one in instructions:
                if one.offset in states:
                    _, stack = _joined(states[one.offset], stack)
                    states[one.offset] = stack
                if stack is None:
                    continue
                self.stack = list(stack)
                if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
                    grown, states[one.argval] = _joined(states.get(one.argval), self._jumped(one))
                    again |= grown and one.argval <= one.offset
                self._step(one)
                stack = None if one.opname in _ENDS or one.opname in _JUMPS else self.stack

    def _step(self, one: dis.Instruction) -> None:
        do = _DO.get(one.opname)
        if do is not None:
            do(self, one)
        else:
            self.generic(one, jump=False)

    def _jumped(self, one: dis.Instruction) -> Stack:
        """The stack at the target of a jump."""
        before = list(self.stack)
        self.generic(one, jump=True)
        after, self.stack = self.stack, before
        return after

    def generic(self, one: dis.Instruction, *, jump: bool) -> None:
        effect = dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=jump)
        made = not one.opname.startswith(_GIVES_NOTHING)
        if effect > 0:
            self.stack += [self.top() if made and not one.opname.startswith("LOAD_") else _UNKNOWN] * effect
        elif effect < 0:
            taken = self.pop_many(-effect)
            if made and self.stack:
                self.push(NO_VALUES.union(self.pop().value, *(item.value for item in taken)))

    # --- the stack ---

    def top(self) -> Item:
        return self.stack[-1] if self.stack else _UNKNOWN

    def pop(self) -> Item:
        return self.stack.pop() if self.stack else _UNKNOWN

    def pop_many(self, count: int) -> Stack:
        """Pop the topmost items; returns them in the order they were pushed."""
        return [self.pop() for _ in range(count)][::-1]

    def push(self, value: Value, text: str = "...") -> None:
        self.stack.append(Item(value, text if len(text) <= _LONGEST else "..."))

    def at(self, depth: int) -> Item:
        return self.stack[-depth] if 0 < depth <= len(self.stack) else _UNKNOWN

    # --- names ---

    def loaded(self, value: Value, text: str) -> None:
        """Push a value that the code names. A container counts as named only when it is used, see ``Flow.use``."""
        for atom in value:
            if isinstance(atom, Known) and is_a(atom.object, Edge | ActorMeta):
                self.frame.effects.named.add(atom.object)
        self.push(value, text)

    def load(self, name: str) -> None:
        value = self.flow.read(self.frame.variable(name), self.frame)
        self.loaded(value, name if name.isidentifier() else "...")

    def load_global(self, name: str) -> None:
        held = self.frame.globals
        beyond: Any = held.get("__builtins__", {})
        names: dict[str, Any] = vars(beyond) if isinstance(beyond, types.ModuleType) else beyond
        found = held if name in held else names
        self.loaded(frozenset((self.flow.objects.known(found[name]),)) if name in found else NO_VALUES, name)

    def store(self, name: str) -> None:
        self.flow.add(self.frame.variable(name), self.pop().value)

    def attribute(self, owner: Item, name: str) -> None:
        self.loaded(self.flow.attribute(owner.value, name, self.frame), f"{owner.text}.{name}")

    def constant(self, one: object, text: str = "...") -> None:
        self.push(frozenset((self.flow.objects.known(one),)), text)

    # --- calls ---

    def call(self, one: dis.Instruction, count: int, keywords: tuple[str, ...]) -> None:
        arguments = self.pop_many(count)
        callee, first = self.pop_many(2)
        if callee is _NULL:
            callee = first
        elif first is not _NULL:
            arguments.insert(0, first)
        plain = len(arguments) - len(keywords)
        values = [item.value for item in arguments]
        shown = (
            [item.text for item in arguments[:1]]
            if plain
            else [f"{keywords[0]}={arguments[0].text}"]
            if keywords
            else []
        )
        shown += ["..."] * (len(arguments) > 1)
        call = Call(
            tuple(values[:plain]),
            dict(zip(keywords, values[plain:], strict=True)),
            NO_VALUES,
            _place(one),
            f"{callee.text}({', '.join(shown)})",
        )
        self.push(self.flow.call(callee.value, call, self.frame), call.text)


def _joined(known: Stack | None, more: Stack | None) -> tuple[bool, Stack]:
    """Join two stacks for one instruction. Returns whether the first has grown, and the result."""
    if known is None or more is None:
        return True, list((known if more is None else more) or ())
    # The depths are equal in valid bytecode; aligning the tops keeps a wrong count from raising.
    pairs = list(zip(reversed(known), reversed(more), strict=False))[::-1]
    joined = [_either(a, b) for a, b in pairs]
    return [item.value for item in joined] != [a.value for a, _ in pairs], joined


def _either(a: Item, b: Item) -> Item:
    if a is b:
        return a
    value = a.value | b.value
    if a.value != b.value:
        value = frozenset(atom for atom in value if not isinstance(atom, Known) or not atom.is_scalar)
    return Item(value, a.text if a.text == b.text else "...")


def _place(one: dis.Instruction) -> tuple[int, int]:
    positions = one.positions
    return (0 if positions is None else positions.lineno or 0), one.offset


# --- the instructions ---


def _do(*names: str) -> Callable[[Do], Do]:
    def note(do: Do) -> Do:
        for name in names:
            _DO[name] = do
        return do

    return note


@_do("LOAD_CONST")
def _load_const(run: _Run, one: dis.Instruction) -> None:
    run.constant(one.argval, repr(one.argval))


@_do(
    "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST_LOAD_FAST",
)  # fmt: skip
def _load(run: _Run, one: dis.Instruction) -> None:
    for name in (one.argval,) if isinstance(one.argval, str) else one.argval:
        run.load(name)


@_do("LOAD_GLOBAL")
def _load_global(run: _Run, one: dis.Instruction) -> None:
    run.load_global(one.argval)
    if (one.arg or 0) & 1:
        run.stack.append(_NULL)
        if sys.version_info < (3, 13):  # older versions push NULL first
            run.stack[-2:] = run.stack[:-3:-1]


@_do("LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS")
def _load_name(run: _Run, one: dis.Instruction) -> None:
    if one.opname.startswith("LOAD_FROM"):
        run.pop()
    if one.argval in run.frame.closure or one.argval in run.frame.locals:
        run.load(one.argval)
    else:
        run.load_global(one.argval)


@_do("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_FAST_STORE_FAST")
def _store(run: _Run, one: dis.Instruction) -> None:
    for name in (one.argval,) if isinstance(one.argval, str) else one.argval:
        run.store(name)


@_do("STORE_FAST_LOAD_FAST")
def _store_load(run: _Run, one: dis.Instruction) -> None:
    stored, loaded = one.argval
    run.store(stored)
    run.load(loaded)


@_do("STORE_ATTR")
def _store_attr(run: _Run, one: dis.Instruction) -> None:
    value, owner = run.pop_many(2)
    for atom in owner.value:
        if isinstance(atom, Instance):
            run.flow.add(run.flow.field(atom, one.argval), value.value)


@_do("STORE_SUBSCR")
def _store_subscr(run: _Run, _: dis.Instruction) -> None:
    value, owner, key = run.pop_many(3)
    _put(run, owner, value.value | key.value)


@_do("LOAD_ATTR", "LOAD_METHOD")
def _load_attr(run: _Run, one: dis.Instruction) -> None:
    run.attribute(run.pop(), one.argval)
    if one.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and (one.arg or 0) & 1):
        run.stack.append(_NULL)


@_do("LOAD_SUPER_ATTR")
def _load_super_attr(run: _Run, one: dis.Instruction) -> None:
    _, owner, receiver = run.pop_many(3)
    run.attribute(Item(run.flow.super(owner.value, receiver.value), "super()"), one.argval)
    if (one.arg or 0) & 1:
        run.stack.append(_NULL)


@_do("IMPORT_NAME")
def _import_name(run: _Run, one: dis.Instruction) -> None:
    level, names = run.pop_many(2)
    (dots,) = [atom.object for atom in level.value if isinstance(atom, Known)] or [0]
    package = run.frame.globals.get("__package__") or ""
    base = package.rsplit(".", dots - 1)[0] if dots else ""
    name = ".".join(filter(None, (base, one.argval)))
    # ``import a.b`` binds ``a``; ``from a.b import c`` needs ``a.b``.
    all_of_it = any(isinstance(atom, Known) and atom.object for atom in names.value)
    module = sys.modules.get(name if all_of_it or dots else name.partition(".")[0])
    if module is None:
        run.push(NO_VALUES, one.argval)
    else:
        run.constant(module, one.argval)


@_do("IMPORT_FROM")
def _import_from(run: _Run, one: dis.Instruction) -> None:
    run.attribute(run.top(), one.argval)


@_do("BINARY_SUBSCR")
def _subscript(run: _Run, _: dis.Instruction) -> None:
    owner, key = run.pop_many(2)
    text = f"{owner.text}[{key.text}]"
    constants = [atom for atom in key.value if isinstance(atom, Known) and atom.is_scalar]
    if len(constants) == 1 == len(key.value):
        found = run.flow.item(owner.value, constants[0].object, run.frame)
    else:
        found = run.flow.elements(owner.value, run.frame)
    run.loaded(found | run.flow.operate(owner.value, "__getitem__", run.frame, key.value), text)


@_do("GET_ITER")
def _get_iter(run: _Run, _: dis.Instruction) -> None:
    item = run.pop()
    run.push(item.value | run.flow.operate(item.value, "__iter__", run.frame), item.text)


@_do("FOR_ITER")
def _for_iter(run: _Run, _: dis.Instruction) -> None:
    run.loaded(run.flow.elements(run.top().value, run.frame), "...")


@_do("UNPACK_SEQUENCE", "UNPACK_EX")
def _unpack(run: _Run, one: dis.Instruction) -> None:
    value = run.pop().value
    value |= run.flow.elements(value, run.frame)
    arg = one.arg or 0
    for _ in range(arg if one.opname == "UNPACK_SEQUENCE" else (arg & 255) + (arg >> 8) + 1):
        run.loaded(value, "...")


@_do("BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_TUPLE", "BUILD_CONST_KEY_MAP")
def _build(run: _Run, one: dis.Instruction) -> None:
    count = {"BUILD_MAP": 2 * (one.arg or 0), "BUILD_CONST_KEY_MAP": 1 + (one.arg or 0)}
    items = run.pop_many(count.get(one.opname, one.arg or 0))
    box = run.flow.objects.box((run.frame, one.offset))
    for item in items:
        run.flow.add(run.flow.field(box, "*"), item.value)
    text = ", ".join(item.text for item in items)
    run.push(frozenset((box,)), f"({text})" if one.opname == "BUILD_TUPLE" else "...")


@_do("LIST_APPEND", "SET_ADD", "MAP_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE")
def _grow(run: _Run, one: dis.Instruction) -> None:
    value: set[Atom] = set()
    for item in run.pop_many(2 if one.opname == "MAP_ADD" else 1):
        value |= item.value
        if one.opname.endswith(("EXTEND", "UPDATE", "MERGE")):
            value |= run.flow.elements(item.value, run.frame)
    _put(run, run.at(one.arg or 0), frozenset(value))


def _put(run: _Run, owner: Item, value: Value) -> None:
    for atom in owner.value:
        run.flow.add(run.flow.field(atom, "*"), value)


@_do(
    "COMPARE_OP", "CONTAINS_OP", "IS_OP", "FORMAT_VALUE", "BUILD_STRING", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"
)
def _plain(run: _Run, one: dis.Instruction) -> None:
    run.generic(one, jump=False)
    run.pop()
    run.push(NO_VALUES)


@_do("COPY")
def _copy(run: _Run, one: dis.Instruction) -> None:
    run.stack.append(run.at(one.arg or 1))


@_do("SWAP")
def _swap(run: _Run, one: dis.Instruction) -> None:
    depth = one.arg or 1
    if depth <= len(run.stack):
        run.stack[-depth], run.stack[-1] = run.stack[-1], run.stack[-depth]


@_do("PUSH_NULL")
def _push_null(run: _Run, _: dis.Instruction) -> None:
    run.stack.append(_NULL)


@_do("PRECALL")
def _precall(_: _Run, __: dis.Instruction) -> None:
    pass  # CALL pops the arguments


@_do("KW_NAMES")
def _kw_names(run: _Run, one: dis.Instruction) -> None:
    run.keywords = run.frame.code.co_consts[one.arg or 0]


@_do("CALL")
def _call(run: _Run, one: dis.Instruction) -> None:
    keywords, run.keywords = run.keywords, ()
    run.call(one, one.arg or 0, keywords)


@_do("CALL_KW")
def _call_kw(run: _Run, one: dis.Instruction) -> None:
    (names,) = [atom.object for atom in run.pop().value if isinstance(atom, Known)] or [()]
    run.call(one, one.arg or 0, names)


@_do("CALL_FUNCTION_EX")
def _call_ex(run: _Run, one: dis.Instruction) -> None:
    given = run.pop_many(1 + ((one.arg or 0) & 1))
    callee, other = run.pop_many(2)
    callee = other if callee is _NULL else callee
    value = NO_VALUES.union(*(item.value for item in given))
    for _ in range(2):
        value |= run.flow.elements(value, run.frame)
    call = Call((), {}, value, _place(one), f"{callee.text}(*{given[0].text})")
    run.push(run.flow.call(callee.value, call, run.frame))


@_do("MAKE_FUNCTION")
def _make_function(run: _Run, one: dis.Instruction) -> None:
    code = next(
        (
            atom.object
            for atom in run.pop().value
            if isinstance(atom, Known) and is_a(atom.object, types.CodeType)
        ),
        None,
    )
    flags = (one.arg or 0) if sys.version_info < (3, 13) else 0
    parts = run.pop_many(flags.bit_count())
    function = NO_VALUES if code is None else frozenset((run.flow.local(code, run.frame),))
    for flag, part in zip((flag for flag in (1, 2, 4, 8) if flags & flag), parts, strict=True):
        _set_attribute(run, function, flag, part)
    run.push(function, "<lambda>")


@_do("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(run: _Run, one: dis.Instruction) -> None:
    part, function = run.pop_many(2)
    _set_attribute(run, function.value, one.arg or 0, part)
    run.stack.append(function)


def _set_attribute(run: _Run, function: Value, flag: int, part: Item) -> None:
    """Apply defaults (flags 1 and 2) to any parameter; annotations and cells do not matter here."""
    if flag in (1, 2):
        run.flow.give(function, part.value, run.frame)


@_do("BEFORE_WITH")
def _before_with(run: _Run, _: dis.Instruction) -> None:
    manager = run.pop()
    run.push(run.flow.methods(manager.value, "__exit__"))
    run.push(manager.value | run.flow.operate(manager.value, "__enter__", run.frame))


@_do("YIELD_VALUE", "RETURN_VALUE")
def _give(run: _Run, _: dis.Instruction) -> None:
    value = run.top().value
    if run.frame.code.co_flags & CO_GENERATOR:
        value |= run.flow.elements(value, run.frame)
    run.flow.add(run.frame.result, value)
